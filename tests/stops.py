"""Ask whole pipelines to stop at random instants: `python -m tests.stops [N [SEED [trainer|flow|warm]]]`.

Runs `python -m trainer` and the flow `data-to-model` with small sizes, and sends SIGTERM, SIGINT or SIGHUP, once or
twice, to the process or to its group, at random times in all stages. After each of N stops the process must exit with
75 within `IN_TIME` seconds and leave no process and no staging folder; it may exit with 0 if its work was finished
before it handled the stop. After at most `STOPS_A_RUN` stops a run is allowed to finish, and must be bit-identical to a
run that was never stopped. Prints each stop and the figures.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.flows.serving import Serving
from tests.processes import Running, alive, descendants, start_warm
from tests.proof import tell
from tests.soak import RUN, differing, outcome
from tests.support import small_values, write_config, write_corpora
from trainer.common.errors import EXIT_PREEMPTED
from trainer.common.stopping import SIGNALS

SETTINGS: dict[str, Any] = {
    "run": RUN.name,
    "training__max_steps": 24,
    "training__save_every": 1,
    "training__evaluate_every": 6,
    "evaluation__during_training": 32,
}
"""Every step is saved, so that the checkpoints of stops do not replace others."""

STOPS_A_RUN = 4

IN_TIME = 10.0
"""Seconds from the first signal to the end of the last process: longer than a save takes here."""

MODULES = {"trainer": "trainer", "flow": "flows.data_to_model", "warm": "trainer.__main__"}
"""`warm` is the trainer in a process with loaded libraries, which allows to try many more instants."""

STAGES = {
    "tokenizers/*/manifest.json": "engine and shards",
    "shards/code-*/manifest.json": "engine and shards of the second corpus",
    "shards/docs-*/manifest.json": "start of training",
    "runs/*/metrics.jsonl": "training",
    "runs/*/final/manifest.json": "evaluation",
    "runs/*/eval.json": "report",
    "runs/*/lineage.json": "end",
}
"""The stage that runs once each of these files exists, in their order."""


class Stops:
    """A folder with raw text and stores, on which pipelines run."""

    def __init__(self, folder: Path, kind: str, env: dict[str, str], draw: random.Random) -> None:
        self._folder, self._kind, self._env, self._draw = folder, kind, env, draw
        self._raw = write_corpora(folder / "raw")
        self._number = 0
        self.failures: list[str] = []
        self.stopped: Counter[str] = Counter()
        self.slowest = 0.0
        if (ended := self._start(folder / "clean").wait(600.0)).status != 0:
            raise RuntimeError(ended.stderr)
        self.lengths = time_stages(self._start(folder / "timed"), lambda: stage_of(folder / "timed"), 0.02)
        self._expected = outcome(folder / "clean")

    def run(self, stops: int) -> int:
        """One run from an empty store to its end, stopped at most a number of times before; return how often it was."""
        self._number += 1
        store, done = self._folder / f"store-{self._number}", 0
        while done < stops and self._stop(store):
            done += 1
        ended = self._start(store).end_within(600.0)
        if ended.status != 0:
            self._fail(f"ended with {ended.status} when it was left to finish", ended.stderr)
        elif wrong := differing(outcome(store), self._expected):
            self._fail(f"differs in {', '.join(wrong)}", ended.stderr)
        return done

    def _stop(self, store: Path) -> bool:
        """Stop a run at a random time of a random remaining stage; return whether it was still running."""
        heeded = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]  # without SIGHUP under nohup
        signum, times = self._draw.choice(heeded), self._draw.choice([1, 2])
        group, between = self._draw.random() < 0.5 and self._kind != "warm", self._draw.uniform(0.0, 1.5)
        stages = list(self.lengths)[:-1]
        if stage_of(store) not in stages:
            return False
        wanted = self._draw.choice(stages[stages.index(stage_of(store)) :][:AHEAD])
        running = self._start(store)
        while running.status() is None and not (heeds(running.pid, heeded) and stage_of(store) == wanted):
            time.sleep(0.02)
        time.sleep(self._draw.uniform(0.0, self.lengths[wanted]))
        family, stage = descendants(running.pid), stage_of(store)
        if running.status() is not None:
            return False
        asked = time.monotonic()
        send(running.pid, signum, group)
        if times == 2:
            time.sleep(between)
            send(running.pid, signum, group)
        ended = running.end_within(3 * IN_TIME)
        status = ended.status
        while (left := [pid for pid in family if alive(pid)]) and time.monotonic() - asked < 3 * IN_TIME:
            time.sleep(0.01)
        seconds = time.monotonic() - asked
        staged = [path.name for path in store.glob(".staging/*")]
        self.stopped[stage if status == EXIT_PREEMPTED else f"{stage}, ended with {status}"] += 1
        self.slowest = max(self.slowest, seconds)
        told = f"{signum.name} x {times}{' to the group' if group else ''} in {stage}: {status} after {seconds:.1f} s"
        print(f"  {told}", flush=True)
        right = status == EXIT_PREEMPTED or (status == 0 and (store / RUN / "lineage.json").exists())
        if not right or seconds > IN_TIME or left or staged:
            self._fail(f"{told}, {len(left)} processes left, {len(staged)} folders left", ended.stderr)
        return True

    def _fail(self, what: str, said: str) -> None:
        self.failures.append(f"run {self._number}: {what}")
        print(f"{self.failures[-1]}\n{said[-6000:]}", flush=True)

    def _start(self, store: Path) -> Running:
        """Start the pipeline, in a new process group unless it is a warm one."""
        config = write_config(self._folder / "job.yaml", small_values(self._raw, store, **SETTINGS))
        said, module = self._folder / "said", MODULES[self._kind]
        if self._kind == "warm":
            return start_warm(said, module, config, env=self._env)
        said.mkdir(exist_ok=True)
        command = [sys.executable, "-m", module, str(config)]
        with open(said / "stdout", "wb") as stdout, open(said / "stderr", "wb") as stderr:
            env = {**os.environ, **self._env}
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=stdout, stderr=stderr, start_new_session=True)
        return Running(process, said)


AHEAD = 3
"""A run is stopped in its present stage or one of the following, `AHEAD` in all."""


def heeds(pid: int, signals: Sequence[signal.Signals]) -> bool:
    """Whether a process has reached a command's first line, after which it handles these signals; true if it has ended.

    SIGINT alone proves nothing: Python handles it from its start.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt")), None)
    return caught is None or all(caught >> (signum - 1) & 1 for signum in signals)


def send(pid: int, signum: signal.Signals, group: bool) -> None:
    """Send a signal to a process, which may have ended, or to its group."""
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, signum)


def stage_of(store: Path) -> str:
    """The present stage in a store."""
    found = [stage for pattern, stage in STAGES.items() if any(store.glob(pattern))]
    return found[-1] if found else "start and tokenizer"


def time_stages(running: Running, stage: Callable[[], str], every: float) -> dict[str, float]:
    """The seconds for which an undisturbed run is in each stage; looks at intervals of so many seconds."""
    lengths, looked = dict.fromkeys(["start and tokenizer", *STAGES.values()], 0.0), time.monotonic()
    while running.status() is None:
        time.sleep(every)
        lengths[stage()] += time.monotonic() - looked
        looked = time.monotonic()
    return lengths


def main(kinds: Sequence[str], stops: int = 200, seed: int = 0) -> int:
    """Run the stops and print the figures; return 1 if anything went wrong."""
    failures = []
    for kind in kinds or MODULES:
        with tempfile.TemporaryDirectory(prefix="headrace-stops-") as name, ExitStack() as stack:
            env = {"HEADRACE_CACHE": f"{name}/cache"}
            if kind == "flow":
                server = Serving(Path(name, "prefect"))
                stack.callback(server.kill_server)
                env |= server.env
            found = Stops(Path(name), kind, env, random.Random(seed))
            print(f"{kind}: one run takes {sum(found.lengths.values()):.0f} s; seed {seed}", flush=True)
            done = 0
            while done < stops:
                done += found.run(min(STOPS_A_RUN, stops - done))
                print(f"{done} stops", flush=True)
            print(f"{kind}: {done} stops, the slowest {found.slowest:.1f} s, {len(found.failures)} failures")
            for stage, count in found.stopped.most_common():
                print(f"  {count:4} {stage}")
            tell(done, len(found.failures))
            failures += found.failures
    print(*failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:], *map(int, sys.argv[1:3])))
