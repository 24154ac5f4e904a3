"""Start-up times of commands: `python -m benchmarks.startup [ROUNDS [COMMAND ...]]`.

On the quickstart: `headrace explain`, a dry run, `headrace run` of a finished run, and `headrace run` to its first
optimizer step with prepared data. For each, wall-clock seconds, and processor seconds of the command itself, Prefect's
temporary server and the stages' worker. Then the seconds to load each library in a new process. All are medians. With
COMMANDs (explain, dry-run, finished, first-step), only these are measured.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.jobs import job, raw_corpora
from benchmarks.measure import run_timed
from tests.processes import kill_all
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here

ROUNDS = 5
LOOK_SECONDS = 0.01
ROLES = {"flows.temporary_server": "server", "trainer.pipelines.worker": "stages"}
"""Kinds of processes by the module that they run; others are part of the command."""

COMMANDS = {
    "explain": "headrace explain, all finished", "dry-run": "headrace run --dry-run",
    "finished": "headrace run, all finished", "first-step": "headrace run, to the first step",
}  # fmt: skip

LIBRARIES = {
    "Python": "sys", "a command's own modules": "flows.commands", "Prefect": "prefect", "Prefect's server":
    "prefect.server.api.server", "PyTorch": "torch", "transformers, with that": "transformers.modeling_utils",
    "all that trains": "trainer.training.run", "all that tokenizes": "trainer.data.tokenization",
}  # fmt: skip


class Spent(NamedTuple):
    """Wall-clock seconds, and processor seconds of each kind of process."""

    wall: float
    command: float
    server: float
    stages: float


def follow(arguments: Sequence[str], until: Callable[[], bool] | None = None) -> Spent:
    """Run `headrace` with arguments to its end, or until a condition is true, and then kill it.

    Raises `RuntimeError` if it fails, or ends before the condition is true.
    """
    started, seen = time.monotonic(), dict[int, tuple[str, float]]()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.command", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    root = psutil.Process(process.pid)
    try:
        while process.poll() is None and not (until and until()):
            with suppress(psutil.NoSuchProcess):
                for each in (root, *root.children(recursive=True)):
                    seen[each.pid] = _look(each, seen.get(each.pid))
            time.sleep(LOOK_SECONDS)
        wall, status = time.monotonic() - started, process.poll()
        if status or (until and status is not None):
            raise RuntimeError(f"`headrace {' '.join(arguments)}` ended with {status}; run it to see why")
    finally:
        kill_all(process.pid)
        process.wait()
    parts = {role: sum(spent for name, spent in seen.values() if name == role) for role in Spent._fields[1:]}
    return Spent(wall, **parts)


def _look(process: psutil.Process, before: tuple[str, float] | None) -> tuple[str, float]:
    """A process's kind and processor seconds; the previous values if it has just ended."""
    with suppress(psutil.Error):
        role = next((role for module, role in ROLES.items() if module in process.cmdline()), "command")
        times = process.cpu_times()
        return role, times.user + times.system
    return before or ("command", 0.0)


def has_stepped(run: Path) -> Callable[[], bool]:
    """Whether a run has recorded a step."""
    path = run / "metrics.jsonl"
    return lambda: path.exists() and b'"kind": "train"' in path.read_bytes()


def median(found: Sequence[Spent]) -> Spent:
    return Spent(*map(statistics.median, zip(*found, strict=True)))


def main(rounds: int, commands: Sequence[str]) -> None:
    """Measure the commands alternately, and print the tables."""
    if unknown := set(commands) - COMMANDS.keys():
        sys.exit(f"unknown command {', '.join(sorted(unknown))}; known are {', '.join(COMMANDS)}")
    print(f"{'start-up, seconds':44}{'clock':>8}{'command':>9}{'server':>8}{'stages':>8}", flush=True)
    for name in [name for name in os.environ if name == "PREFECT_API_URL" or name.startswith("PREFECT__")]:
        del os.environ[name]  # of a flow run that measures
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        os.environ["PREFECT_HOME"] = str(folder / "prefect")
        raw_corpora(folder / "raw")
        bench = job(folder, max_steps=20, log_every=1)
        prepare(bench.preparation(), here(silent()))
        path = folder / "job.json"
        path.write_text(bench.model_copy(update={"run": "done"}).model_dump_json())
        follow(["run", str(path)])
        found: dict[str, list[Spent]] = {}
        for number in range(rounds):
            fresh = folder / f"fresh-{number}.json"
            fresh.write_text(_longer(bench, f"fresh-{number}"))
            stepped = has_stepped(Path(bench.store, "runs", f"fresh-{number}"))
            measures: dict[str, Callable[[], Spent]] = {
                "explain": partial(follow, ["explain", str(path)]),
                "dry-run": partial(follow, ["run", "--dry-run", str(path)]),
                "finished": partial(follow, ["run", str(path)]),
                "first-step": partial(follow, ["run", str(fresh)], stepped),
            }
            for command in commands or COMMANDS:
                found.setdefault(command, []).append(measures[command]())
    for command, each in found.items():
        print(
            f"{COMMANDS[command]:44}"
            + "".join(f"{part:>{width}.2f}" for part, width in zip(median(each), (8, 9, 8, 8), strict=True))
        )
    if commands:
        return
    print(f"{'loaded in a new process, seconds':44}{'clock':>8}")
    for what, module in LIBRARIES.items():
        seconds = [run_timed(["-c", f"import {module}"]) for _ in range(rounds)]
        print(f"{what:44}{statistics.median(seconds):8.2f}", flush=True)


def _longer(bench: PipelineJob, run: str) -> str:
    values = json.loads(bench.model_copy(update={"run": run}).model_dump_json())
    values["training"]["max_steps"] = 1000
    return json.dumps(values)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS, sys.argv[2:])
