"""Nightly speed measurement: `python -m benchmarks.nightly [FOLDER]`, or the deployment in deployments/nightly.yaml.

A night runs the quickstart with an empty store, trains alternately with `transformers.Trainer`, and starts runs until
their first step. Its figures are medians over the quickstart's steps, over rounds of both sides, and over starts.
FOLDER holds the figures of all nights (nights.jsonl) and their chart (nights.svg), which Prefect also shows. After
recording its figures, a night fails if one is worse than the median of earlier nights by more than the allowed share. A
first night does not fail.
"""

import base64
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from prefect import flow, task
from prefect.artifacts import create_image_artifact

from benchmarks.jobs import raw_corpora
from flows.data_to_model import data_to_model
from trainer.common.errors import PipelineError
from trainer.config.files import load_job
from trainer.config.jobs import PipelineJob
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

Night = Mapping[str, Any]
"""The date of a night, and its figures."""

CHECKOUT = Path(__file__).parents[1]
NIGHTS, EARLIER = "nights.jsonl", 14
"""The file of all nights, and the number of last nights that a night is compared with."""

STARTS = 3
"""Runs that are started to their first step."""


class Gate(NamedTuple):
    """A night's figures: title, whether more is better, and the allowed share by which a night may be worse."""

    title: str
    more: bool
    allowed: float


GATES = {
    "tokens_per_second": Gate("Quickstart, tokens a second", True, 0.15),
    "against_trainer": Gate("Training speed relative to Trainer", True, 0.1),
    "start_seconds": Gate("Processor seconds of a run to its first step", False, 0.15),
    "loss": Gate("Quickstart, held-out loss", False, 0.02),
}


class SlowNight(PipelineError):
    """A night's figures are worse than those of earlier nights."""


@flow(name="nightly", log_prints=True)
def nightly(folder: str = "data/nightly", config: str = "configs/quickstart.yaml", rounds: int = 10) -> dict[str, Any]:
    """Measure, record, draw and judge a night. Raises `SlowNight`."""
    store, figures = Store(folder), {**run_quickstart(config), **train_beside_peer(rounds), **start_runs(STARTS)}
    night = {"when": datetime.now(UTC).isoformat(timespec="minutes"), **figures}
    before = read_nights(store)
    svg = draw([*before, night])
    store.write_bytes(NIGHTS, "".join(f"{json.dumps(each)}\n" for each in [*before, night]).encode())
    store.write_bytes("nights.svg", svg)
    shown = base64.b64encode(svg).decode()
    create_image_artifact(f"data:image/svg+xml;base64,{shown}", key="nights", description=json.dumps(night))
    if worse := judge(night, before):
        raise SlowNight("; ".join(worse))
    return night


def run_quickstart(config: str) -> dict[str, float]:
    """The quickstart's figures, from a run in a new store."""
    if not Path("data/raw").exists():
        raw_corpora(Path("data/raw"))
    with tempfile.TemporaryDirectory(prefix="headrace-nightly-") as name:
        outcome = data_to_model(load_job(PipelineJob, config, [f"store={name}"]))
        records = read_records(Store(name), outcome.run)
        rates = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    assert outcome.evaluation is not None and outcome.evaluation.total is not None  # for all corpora together
    return {"tokens_per_second": statistics.median(rates), "loss": outcome.evaluation.total.figures["loss"]}


@task
def train_beside_peer(rounds: int) -> dict[str, float]:
    """The loop's speed relative to Trainer, measured in a separate process without other threads."""
    told = _run("benchmarks.training", "eager", rounds)
    return {"against_trainer": float(re.findall(r"headrace / Trainer +(\S+)", told)[0])}


@task
def start_runs(rounds: int) -> dict[str, float]:
    """The processor seconds of all processes of a run on prepared data, until its first step."""
    told = _run("benchmarks.startup", rounds, "first-step")
    _, *parts = re.findall(r"\d+\.\d+", told)  # the first is the time that passed
    return {"start_seconds": sum(map(float, parts))}


def _run(module: str, *arguments: object) -> str:
    """The output of one of the benchmarks, which is also logged."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    told = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(told)
    return told


def read_nights(store: Store) -> list[Night]:
    """The recorded nights, oldest first."""
    return [json.loads(line) for line in (store.find_bytes(NIGHTS) or b"").splitlines()]


def judge(night: Night, before: Sequence[Night]) -> list[str]:
    """Messages about the figures that are worse than allowed."""
    found = []
    for name, (title, more, allowed) in GATES.items():
        if earlier := [each[name] for each in before[-EARLIER:] if name in each]:
            usual = statistics.median(earlier)
            bound = usual * (1 - allowed if more else 1 + allowed)
            if (night[name] < bound) if more else (night[name] > bound):
                told = f"{night[name]:,.4g}, {'at least' if more else 'at most'} {bound:,.4g}"
                found.append(f"{title}: {told} was expected (the median of {len(earlier)} nights is {usual:,.4g})")
    return found


def draw(nights: Sequence[Night]) -> bytes:
    """A chart of each figure over the nights, as SVG."""
    figure = Figure(figsize=(8, 2.2 * len(GATES)), layout="constrained")
    for place, (name, gate) in enumerate(GATES.items(), start=1):
        axes = figure.add_subplot(len(GATES), 1, place, title=gate.title)
        times = [datetime.fromisoformat(each["when"]) for each in nights]
        axes.plot(times, [each.get(name, float("nan")) for each in nights], marker="o")  # type: ignore[arg-type]
        axes.set_ylim(bottom=0)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    return drawn.getvalue()


if __name__ == "__main__":
    nightly(sys.argv[1] if sys.argv[1:] else "data/nightly")
