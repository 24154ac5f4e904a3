"""Goodput: the share of time spent on steps that count while processes are killed at a steady rate.

    python -m benchmarks.goodput [--ways trainer stage flow s3 Trainer worker] [--every 60] [--save-every 10]
        [--steps 1200]

The quickstart's model trains for `--steps` steps and is killed (SIGKILL) every `--every` seconds, in these ways:

    trainer   `python -m trainer`, restarted immediately, as by a supervisor
    stage     the training process of `headrace run`; the flow continues
    flow      all processes of `headrace run` with its Prefect server, like a lost machine; restarted immediately
    worker    the processes of a deployed flow's run under a Prefect worker; the server's watchdog reschedules it
    s3        `trainer`, with its store on an S3 server on this machine
    Trainer   `transformers.Trainer` on the same windows with `resume_from_checkpoint`, restarted immediately; a
              checkpoint that it cannot read is deleted for it, and counted

All save every `--save-every` steps. A step counts once, in the process in which it was not lost. Goodput is the time of
these steps over the time from the first step to the last. The first step of a process, whose start cannot be observed,
counts with the median step time. headrace and Trainer first run without kills; the killed runs must end with the same
weights.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import raw_corpora
from benchmarks.measure import run_timed, say
from tests.processes import alive, children, kill_all, stages
from tests.s3 import s3_server
from trainer.common.progress import silent
from trainer.config.files import load_job, override
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import open_dataset
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here
from trainer.store.storage import Store

QUICKSTART = load_job(PipelineJob, "configs/quickstart.yaml")
LOOK_SECONDS = 0.01
GIVEN_UP = 600.0
"""Seconds after which a crashed run is no longer expected to restart."""
TAIL_BYTES = 4000
WAYS = {
    "trainer": ["trainer"], "stage": ["flows.command", "run"], "flow": ["flows.command", "run"],
    "Trainer": ["benchmarks.goodput_trainer"], "s3": ["trainer"], "worker": [],
}  # fmt: skip


@dataclass
class Kill:
    """Times of a kill, of the next process, of its loaded state (if reported) and of its first step; repeated steps."""

    killed: float
    started: float = 0.0
    loaded: float = 0.0
    stepped: float = 0.0
    repeated: int = 0


@dataclass
class Timeline:
    """The time of each step that counts, which of them were the first of a process, and the kills."""

    made: dict[int, float] = field(default_factory=dict)
    firsts: set[int] = field(default_factory=set)
    kills: list[Kill] = field(default_factory=list)
    mended: int = 0

    def note(self, step: int, now: float, first: bool) -> None:
        """Record a step; it replaces itself and later steps."""
        for each in [each for each in self.made if each >= step]:
            del self.made[each]
        self.firsts = {each for each in self.firsts if each < step} | ({step} if first else set())
        self.made[step] = now

    def goodput(self) -> float:
        """The share of time spent on steps that count."""
        steps = sorted(self.made)
        lasted = [self.made[b] - self.made[a] for a, b in pairwise(steps) if b not in self.firsts]
        whole = self.made[steps[-1]] - self.made[steps[0]]
        return (sum(lasted) + statistics.median(lasted) * len(self.firsts - {steps[0]})) / whole


class Way:
    """One way to run the job in a folder: start, kill, observe."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str]) -> None:
        self.name, self.folder = name, folder
        self._told: Path | None = None
        self._command = [sys.executable, "-m", *WAYS[name], *arguments]
        self.start()

    def start(self) -> None:
        """Start the job in a new process group."""
        env = {**os.environ, "TMPDIR": str(self.folder), "HEADRACE_CACHE": str(self.folder / "cache")}
        with open(self.folder / "said", "ab") as said:
            self.process = subprocess.Popen(self._command, env=env, stdout=said, stderr=said, start_new_session=True)

    def running(self) -> bool:
        return self.process.poll() is None

    def go_on(self) -> bool:
        """Restart after a kill; return whether something had to be repaired first."""
        mended = self.process.returncode != -signal.SIGKILL
        if mended and not (self.name == "Trainer" and self.mend()):
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}; see {self.folder / 'said'}")
        self.start()
        return mended

    def at_work(self) -> list[int]:
        """The process that trains or loads its libraries and state."""
        if self.name != "stage":
            return [self.process.pid] * self.running()
        return [pid for pid in stages(self.process.pid) if alive(pid)]

    def kill(self) -> None:
        """Kill this way's processes with their descendants."""
        for pid in self.at_work():
            kill_all(pid)
        if self.name != "stage":
            self.process.wait()

    def step(self) -> int:
        """The last recorded step, else 0."""
        try:
            self._told = self._told or next(self.folder.rglob("metrics.jsonl"), None)
            if self._told is None:
                return 0
            with open(self._told, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                return next(filter(None, map(_step_of, reversed(file.read().splitlines(keepends=True)))), 0)
        except FileNotFoundError:  # the copy, or a folder, of a killed process
            self._told = None
            return 0

    def has_loaded(self) -> bool:
        """Whether the newest process has reported its starting step."""
        return b"continuing from" in (self.folder / "said").read_bytes().rpartition(b"--killed--")[2]

    def mend(self) -> bool:
        """Delete an unreadable newest checkpoint if this way needs a person for that; return whether it did."""
        found = sorted(self.folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        for path in found[-1:]:
            shutil.rmtree(path)
        return bool(found)


class Deployed(Way):
    """A deployment's run: its processes under the worker are killed, and its server restarts it."""

    def __init__(self, folder: Path, job: PipelineJob, served: Any) -> None:
        self._served, self._job = served, job.model_dump(mode="json")
        self._state, self._looked, self._lived = "", 0.0, time.monotonic()
        super().__init__("worker", folder, [])

    def start(self) -> None:
        self._run = self._served.run("data-to-model/pretrain", self._job)

    def running(self) -> bool:
        now = time.monotonic()
        if now > self._looked + 1:
            self._state, self._looked = self._served.state_of(self._run), now
        self._lived = now if self._state != "CRASHED" else self._lived
        if self._state in ("FAILED", "CANCELLED") or now > self._lived + GIVEN_UP:
            raise RuntimeError(f"the flow's run is {self._state}; see {self.folder}")
        return self._state != "COMPLETED"

    def go_on(self) -> bool:
        raise RuntimeError(f"the flow's run ended before its last step; see {self.folder}")

    def at_work(self) -> list[int]:
        return [pid for pid in children(self._served.worker.pid) if any(map(alive, stages(pid)))]

    def kill(self) -> None:
        for pid in self.at_work():
            kill_all(pid)

    def has_loaded(self) -> bool:
        return False  # its output is part of the worker's output


def _step_of(line: bytes) -> int:
    """The step in a line; 0 for an incomplete line or another record."""
    with suppress(ValueError):
        record = json.loads(line) if line.endswith(b"\n") else {}
        return int(record["step"]) if record.get("kind") == "train" else 0
    return 0


def follow(way: Way, steps: int, every: float) -> Timeline:
    """Run to the end, and kill every `every` seconds between the first and last step; 0 never kills."""
    line, due, lowest = Timeline(), float("inf"), 0
    waits = True
    while way.running() or max(line.made, default=0) < steps:
        time.sleep(LOOK_SECONDS)
        now, step = time.monotonic(), way.step()
        lowest = min(lowest, step or lowest)  # no step is visible while a copy is replaced
        if waits and line.kills:
            line.kills[-1].started = line.kills[-1].started or (now if way.at_work() else 0.0)
            line.kills[-1].loaded = line.kills[-1].loaded or (now if way.has_loaded() else 0.0)
        if step > (lowest if waits else max(line.made)):
            if line.made and waits:
                line.kills[-1].stepped, line.kills[-1].repeated = now, max(line.made) - step + 1
            elif not line.made and every:
                due = now + every
            line.note(step, now, first=waits)
            waits = False
        if now >= due and way.at_work() and max(line.made) < steps:
            with open(way.folder / "said", "ab") as said:
                said.write(b"--killed--")
            line.kills.append(Kill(now))
            way.kill()
            due, lowest, waits = due + every, max(line.made), True
        if not way.running() and max(line.made, default=0) < steps:
            line.mended += way.go_on()
    return line


class Bench:
    """A folder with raw text and prepared data, and the ways to run the job there."""

    def __init__(self, folder: Path, steps: int, save_every: int) -> None:
        self._folder, self._steps, self._save_every = folder, steps, save_every
        raw_corpora(folder / "raw")
        job = self._job(str(folder / "prepared"))
        data, store = prepare(job.preparation(), here(silent())), Store(job.store)
        plan = make_plan(job.training, shard_manifests(store, data), 1)
        windows = open_dataset(store, data, job.training, plan, 1).windows[0]
        np.save(folder / "windows.npy", np.stack([windows.inputs(n)["input_ids"] for n in range(len(windows))]))

    def _job(self, store: str) -> PipelineJob:
        corpora = [str(each.paths[0]).replace("data/raw", f"{self._folder}/raw") for each in QUICKSTART.data.corpora]
        words = [
            f"store={store}", "run=goodput", f"training.max_steps={self._steps}", "training.log_every=1",
            f"training.save_every={self._save_every}", f"training.evaluate_every={self._steps}",
            *(f"data.corpora.{number}.paths={json.dumps([path])}" for number, path in enumerate(corpora)),
        ]  # fmt: skip
        return override(QUICKSTART, words)

    def run(self, name: str, every: float) -> tuple[Timeline, str]:
        """Run a way from prepared data to its end; return its timeline and a digest of its weights."""
        folder = self._folder / f"{name}-{every:g}"
        folder.mkdir()
        if name == "Trainer":
            words = [str(self._folder), str(folder), str(self._steps), str(self._save_every)]
            line = follow(Way(name, folder, words), self._steps, every)
            return line, _digest((folder / "final" / "model.safetensors").read_bytes())
        with ExitStack() as stack:
            url = stack.enter_context(s3_server(folder)).new_store() if name == "s3" else str(folder / "store")
            job = self._job(url)
            prepare(job.preparation(), here(silent()))
            path = folder / "job.json"
            path.write_text(job.model_dump_json())
            if name == "worker":
                from tests.flows.serving import serving  # needs pytest

                served = stack.enter_context(serving(folder, cores=len(os.sched_getaffinity(0))))
                way: Way = Deployed(folder, job, served)
            else:
                way = Way(name, folder, [str(path)])
            line = follow(way, self._steps, every)
            return line, _digest(Store(url).read_bytes("runs/goodput/final/model.safetensors"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tell(name: str, every: float, line: Timeline, same: bool) -> None:
    """Print the figures of a way."""
    say(f"{name}, killed every {every:g} s: goodput", f"{line.goodput():.3f}", "at least 0.90" if every == 60 else "")
    done = [kill for kill in line.kills if kill.stepped]
    parts = {
        "from kill to next step": [kill.stepped - kill.killed for kill in done],
        "until another process started": [kill.started - kill.killed for kill in done],
        "until it had loaded libraries, data and state": [k.loaded - k.started for k in done if k.loaded],
        "until its first step": [kill.stepped - kill.loaded for kill in done if kill.loaded],
    }
    for part, seconds in parts.items():
        if seconds:
            say(f"  {part}", f"{statistics.median(seconds):.2f} s")
    repeated = [kill.repeated for kill in done]
    say("  kills, repeated steps, manual repairs", f"{len(line.kills)}, {sum(repeated)}, {line.mended}")
    say("  same weights as without kills", "yes" if same else "NO")


def main(ways: list[str], every: list[float], steps: int, save_every: int) -> None:
    """Run each way without and with kills, and print the figures."""
    print(
        f"goodput: the quickstart's model for {steps:,} steps, saved every {save_every}, killed at a steady rate",
        flush=True,
    )
    say("loading the trainer's libraries", f"{run_timed(['-c', 'import trainer.training.run']):.2f} s")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        bench = Bench(Path(name), steps, save_every)
        alone: dict[bool, str] = {}
        for way in ways:
            theirs = way == "Trainer"
            if theirs not in alone:
                line, alone[theirs] = bench.run(way, 0)
                say(f"{'Trainer' if theirs else 'headrace'}, without kills", f"{pace(line):.3f} s a step")
            for seconds in every:
                line, weights = bench.run(way, seconds)
                tell(way, seconds, line, weights == alone[theirs])


def pace(line: Timeline) -> float:
    """The median seconds of a step."""
    return statistics.median(b - a for a, b in pairwise(sorted(line.made.values())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--every", nargs="+", type=float, default=[60.0], metavar="SECONDS")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--steps", type=int, default=1200)
    main(**vars(parser.parse_args()))
