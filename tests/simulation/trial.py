"""One seed: clients of one store, faults for a time, and what came of it."""

import logging
import os
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.simulation import clients
from tests.simulation.bucket import Bucket, Faults
from tests.simulation.clients import RUNS
from tests.simulation.planted import planted
from tests.simulation.watching import Watch
from tests.simulation.world import Machine, Pool, Threading, World, wrong_clock
from trainer.common import stopping
from trainer.common.errors import PipelineError
from trainer.records import lease
from trainer.store import checked_files, remote
from trainer.training import checkpoint

log = logging.getLogger(__name__)

STEPS_OF_FAULTS, MOST_STEPS, LAST_STEPS = 2500, 20_000, 3000
"""Faults end after so many requests; all must be done within so many in all, and then each run within so many more."""

CALM, ROTTEN, DISTURBED, AGAIN = 0.3, 0.1, 0.01, 0.2
"""The share of seeds in which nothing is disturbed, in which bits flip too, of requests after which something is
disturbed, and of clients that have ended well and are started again."""

FAULTS = ["kill", "freeze", "clock", "outage", "full disk"]
"""What happens to a process, its machine or the store."""
FLIP = "flipped bit"

TRACE = "SIMULATION_TRACE"


@dataclass
class Outcome:
    """What came of a seed: `violations` must be empty; `seen` counts faults, and what was done."""

    seed: int
    violations: list[str]
    steps: int
    seen: Counter[str]


class Trial:
    """A store and its clients, disturbed for a time."""

    def __init__(self, seed: int) -> None:
        self.seed, self.world = seed, World(seed)
        draw = self.world.draw
        kind = draw.random()
        self._calm, self._rotten = kind < CALM, kind > 1 - ROTTEN
        self._faults = Faults(late=draw.choice([0, 0.01, 0.03]))
        if not self._calm:
            self._faults.refused, self._faults.unanswered = draw.choice([0, 0.05, 0.3]), draw.choice([0, 0.01, 0.05])
        self.bucket = Bucket(self.world, self._faults)
        self._relied = Counter[str]()
        self._watch = Watch(self.world, self.bucket, self._calm, self._relied)
        self._promoted: list[str] = []
        self._machines = [Machine("one"), Machine("two")]

    def run(self) -> Outcome:
        world = self.world
        for name, data in RUNS.items():
            self._start(f"train {name}", partial(clients.train, world, name, data, self._relied), times=6)
        self._start("train one again", partial(clients.train, world, "one", RUNS["one"], self._relied), times=2)
        for data in dict.fromkeys(RUNS.values()):
            self._start(f"prepare {data}", partial(clients.prepare, world, data), times=1)
        for number in range(2):
            self._start(f"collect {number}", partial(clients.collect_garbage, world), times=2)
            names = world.draw.sample([*RUNS], len(RUNS))
            self._start(f"promote {number}", partial(clients.promote_runs, world, names, self._promoted), times=2)
        self._start("leftovers", partial(clients.remove_leftovers, world), times=2)
        while world.steps < MOST_STEPS and world.step():
            if world.steps < STEPS_OF_FAULTS and not self._calm:
                self._disturb()
            elif world.steps == STEPS_OF_FAULTS:
                self._end_faults()
        if world.processes:
            left = ", ".join(each.name for each in world.processes)
            self._watch.violations.append(f"not done after {world.steps} steps: {left}")
        self._watch.look_at_rest()
        self._finish()
        self._watch.look_at_end()
        self._watch.look_at_told(self._promoted)
        return Outcome(self.seed, self._watch.violations, world.steps, self._watch.seen)

    def _start(self, name: str, work: Callable[[], object], times: int) -> None:
        """Start a client on some machine, and again, as another process, when it was killed or has failed."""
        draw = self.world.draw

        def run() -> None:
            mine, failed = self.world.process, False
            try:
                work()
            except PipelineError as error:
                failed = True
                self._watch.ended_with[name] = error
                log.info("%s: %s", name, error)
            except Exception as error:
                self._watch.violations.append(f"{name}: {type(error).__name__}: {error}")
                if os.environ.get(TRACE):
                    raise
            finally:
                if mine.alive and not failed:
                    self._watch.seen[f"{name.split()[0]} ended well"] += 1
                    self._watch.look_at_ended(mine)
                if times > 1 and (failed or not mine.alive or draw.random() < AGAIN):
                    self._start(name, work, times - 1)

        self.world.start(name, draw.choice(self._machines), run)

    def _disturb(self) -> None:
        draw, world = self.world.draw, self.world
        living = [process for process in world.processes if process.alive]
        if not living or draw.random() > DISTURBED:
            return
        rotten = self._rotten and bool(self.bucket.objects)
        process, kind = draw.choice(living), draw.choice(["kill", *FAULTS, *[FLIP] * rotten])
        self._watch.seen[kind] += 1
        if kind == "kill":
            world.kill(process)
        elif kind == "freeze":
            process.frozen_until = world.now + draw.choice([5.0, 60.0, 200.0, 2000.0])
        elif kind == "outage":
            self._faults.away_until = world.now + draw.choice([2.0, 20.0, 100.0])
        elif kind == "full disk":
            process.machine.full_until = world.now + draw.choice([5.0, 60.0, 200.0])
        elif kind == FLIP:
            self.bucket.flip(draw.choice(sorted(self.bucket.objects)))
        else:
            others = {-120.0, -30.0, 0.0, 30.0, 120.0} - {process.machine.offset}
            process.machine.offset = draw.choice(sorted(others))

    def _end_faults(self) -> None:
        self._faults.refused = self._faults.unanswered = self._faults.late = self._faults.away_until = 0.0
        for machine in self._machines:
            machine.full_until = 0.0
        for process in self.world.processes:
            process.frozen_until = min(process.frozen_until, self.world.now)

    def _finish(self) -> None:
        """Each run is started once more, alone: now it must come to its end."""
        self._end_faults()
        for name, data in RUNS.items():
            self.world.processes.clear()
            self._start(f"last {name}", partial(clients.train, self.world, name, data, self._relied), times=1)
            end = self.world.steps + LAST_STEPS
            while self.world.step():
                if self.world.steps > end:
                    self._watch.violations.append(f"{name} does not come to its end")
                    return


@contextmanager
def installed(trial: Trial) -> Iterator[None]:
    """Have the project's code use this world's time, threads and bucket, for the length of a block."""
    world = trial.world
    wrong, real_wait = wrong_clock(world), stopping.wait
    fake = SimpleNamespace(url_to_fs=lambda url, **_: (trial.bucket, url.removeprefix("s3://")))
    names, cache, folder = random.Random(trial.seed), checked_files.machine_cache, checked_files.machine_cache()

    def own_cache() -> Path:
        """Of each process its own, as if there were one on each machine: what has it locked is not to be waited for."""
        return folder / str(world.process.pid if world.running else 0)

    with (
        patch.multiple(time, time=world.clock, monotonic=world.monotonic, sleep=world.sleep),
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))),
    ):
        changed: list[tuple[Any, str, Any]] = []

        def change(module: Any, name: str, value: Any) -> None:
            changed.append((module, name, getattr(module, name)))
            setattr(module, name, value)

        for name, module in list(sys.modules.items()):
            if not name.startswith("trainer."):
                continue
            for attribute, value in list(vars(module).items()):
                if value is datetime:
                    change(module, attribute, wrong)
                elif value is real_wait:
                    change(module, attribute, world.sleep)
                elif value is cache:
                    change(module, attribute, own_cache)
                elif value is ThreadPoolExecutor:
                    change(module, attribute, partial(Pool, world))
        change(remote, "fsspec", fake)
        change(lease, "threading", Threading(world))
        change(lease, "_identity", lambda: _identity(world))
        change(lease, "_started", lambda pid: _started(world, pid))
        change(checkpoint, "_find_impossible", lambda *_: None)  # of tensors, which there are not
        try:
            yield
        finally:
            for module, attribute, value in reversed(changed):
                setattr(module, attribute, value)


def _identity(world: World) -> dict[str, Any]:
    if world.running is None:
        return {"host": "outside", "pid": 1, "machine": "outside", "started": "0"}
    process = world.process
    return {
        "host": process.machine.name, "pid": process.pid, "machine": process.machine.name,
        "started": str(process.started),
    }  # fmt: skip


def _started(world: World, pid: int) -> str:
    return next((str(each.started) for each in world.processes if each.pid == pid and each.alive), "")


def simulate(seed: int, bug: str = "") -> Outcome:
    """Try one seed, with a bug of `planted` if one is named. The same seed does the same, whatever was tried before."""
    with logged_nowhere(), in_memory():
        trial = Trial(seed)
        with planted(bug), installed(trial):
            outcome = trial.run()
        remote.let_go_of_copies()
        return outcome


@contextmanager
def logged_nowhere() -> Iterator[None]:
    """What is said is told where `SIMULATION_TRACE` is set, and else not."""
    before = logging.root.manager.disable
    if not os.environ.get(TRACE):
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def in_memory() -> Iterator[None]:
    """Where files of this machine are written that stores stage and fetch: in memory, where that is a folder."""
    shared = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder,
        patch.dict(os.environ, {"HEADRACE_CACHE": f"{folder}/cache"}),
        patch.object(tempfile, "tempdir", folder),
    ):
        yield
