"""One seed: clients of one store, faults for some time, and the result."""

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.simulation import clients, preparing
from tests.simulation.bucket import URL, Bucket, Faults
from tests.simulation.clients import BASES, RUNS
from tests.simulation.machines import Folders
from tests.simulation.planted import planted
from tests.simulation.predicting import predict_all
from tests.simulation.replaced import TRACE, in_memory, logged_nowhere, replaced
from tests.simulation.watching import Watch
from tests.simulation.world import Machine, World
from trainer.common.errors import PipelineError
from trainer.store import checked_files, remote
from trainer.store.storage import Store

log = logging.getLogger(__name__)

STEPS_OF_FAULTS, MOST_STEPS, LAST_STEPS = 2500, 20_000, 3000
"""Faults end after the first number of requests; all must finish within the second, then each run within the third."""

CALM, ROTTEN, DISTURBED, AGAIN = 0.3, 0.1, 0.01, 0.2
"""Shares: seeds without faults, seeds with flipped bits, requests followed by a fault, and successfully ended clients
that are started again."""

TAKES_PART = 0.5
"""The share of seeds in which a client takes part. Fewer clients interact sooner, and more seeds can be tried (swarm
testing, Groce et al., ISSTA 2012)."""

PREDICTED = 2
"""The number of runs that predict, in addition to the champion."""

RAW = Path("/proc/self/cwd/raw")
"""The path of raw text, always the same because it is written into the store."""

FAULTS = ["kill", "freeze", "clock", "outage", "full disk"]
"""Faults of a process, its machine or the store."""
FLIP = "flipped bit"


@dataclass
class Outcome:
    """The result of a seed: `violations` must be empty; `seen` counts faults and actions."""

    seed: int
    violations: list[str]
    steps: int
    seen: Counter[str]


class Trial:
    """A store and its clients, with faults for some time."""

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
        chosen = {name for name in RUNS if draw.random() < TAKES_PART} or {draw.choice([*RUNS])}
        chosen |= {BASES[name] for name in chosen if name in BASES}
        self._runs = {name: data for name, data in RUNS.items() if name in chosen}
        self._watch = Watch(self.world, self.bucket, self._calm, self._relied, [*self._runs])
        self._promoted: list[str] = []
        self._predicted: list[str] = []
        self._machines = [Machine("one"), Machine("two")]
        self._raw = preparing.write_raw(RAW)
        self.folders = Folders(self.world, checked_files.machine_cache())

    def run(self) -> Outcome:
        self._start_all()
        world = self.world
        world.stepped = self._stepped
        if not world.run(MOST_STEPS):
            left = ", ".join(each.name for each in world.processes)
            self._watch.violations.append(f"not done after {world.steps} steps: {left}")
        self._watch.look_at_rest()
        self._finish()
        self._watch.look_at_end()
        self._watch.look_at_told(self._promoted, self._predicted)
        self.folders.look_at_swept()
        self._watch.violations += self.folders.violations
        return Outcome(self.seed, self._watch.violations, world.steps, self._watch.seen)

    def _start_all(self) -> None:
        world, raw, relied = self.world, self._raw, self._relied
        for name, data in self._runs.items():
            self._start(f"train {name}", partial(clients.train, world, name, data, raw, relied), times=6)
        twice = world.draw.choice([*self._runs])
        others: dict[str, Callable[[], object]] = {
            f"train {twice} again": partial(clients.train, world, twice, self._runs[twice], raw, relied),
            "predict": partial(predict_all, world, self._mixed()[:PREDICTED], raw, self._predicted),
            "leftovers": partial(clients.remove_leftovers, world),
        }
        for data in dict.fromkeys(RUNS.values()):
            others[f"prepare {data}"] = partial(preparing.prepare, world, data, raw, relied)
        for number in range(2):
            others[f"curate {number}"] = partial(preparing.curate_text, world, raw, relied)
            others[f"collect {number}"] = partial(clients.collect_garbage, world)
            others[f"promote {number}"] = partial(clients.promote_runs, world, self._mixed(), self._promoted)
            others[f"sweep {number}"] = partial(clients.sweep, world)
        for name, work in others.items():
            if world.draw.random() < TAKES_PART:
                self._start(name, work, times=2)

    def _mixed(self) -> list[str]:
        """All runs in random order."""
        return self.world.draw.sample([*self._runs], len(self._runs))

    def _start(self, name: str, work: Callable[[], object], times: int, machine: Machine | None = None) -> None:
        """Start a client on a random machine, and restart it as another process after a kill or an error."""
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
                try:
                    remote.let_go_of_copies()
                finally:
                    self.folders.reshard(mine)

        self.world.start(name, machine or draw.choice(self._machines), run)

    def _stepped(self) -> None:
        if self.world.steps < STEPS_OF_FAULTS:
            if not self._calm and self.world.draw.random() < DISTURBED:
                self._disturb()
        elif self.world.steps == STEPS_OF_FAULTS:
            self._end_faults()

    def _disturb(self) -> None:
        draw, world = self.world.draw, self.world
        living = [process for process in world.processes if process.alive]
        if not living:
            return
        rotten = self._rotten and bool(self.bucket.objects)
        process, kind = draw.choice(living), draw.choice(["kill", *FAULTS, *[FLIP] * rotten])
        self._watch.seen[kind] += 1
        if kind == "kill":
            world.kill(process)
        elif kind == "freeze":
            process.frozen_from = world.now
            process.freeze(world.now + draw.choice([5.0, 60.0, 200.0, 2000.0]))
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
            process.freeze(min(process.frozen_until, self.world.now))

    def _finish(self) -> None:
        """Start each run alone on a new machine, whose cache has no copies with flipped bits; it must finish.

        Predictions must finish too; then machines are swept.
        """
        self._end_faults()
        self.world.stepped = lambda: None
        for name, data in self._runs.items():
            self._do_last(name, partial(clients.train, self.world, name, data, self._raw, self._relied))
        names = self._mixed()[:PREDICTED]
        self._do_last("predict", partial(predict_all, self.world, names, self._raw, self._predicted))
        for machine in self._machines:
            self._do_last(f"sweep {machine.name}", lambda: Store(URL).sweep(), machine)

    def _do_last(self, name: str, work: Callable[[], object], machine: Machine | None = None) -> None:
        if machine is None:
            self._machines.append(machine := Machine(f"new for {name}"))
        self.world.forget_all()
        self._start(f"last {name}", work, times=1, machine=machine)
        if not self.world.run(self.world.steps + LAST_STEPS):
            self._watch.violations.append(f"last {name} does not come to its end")


def simulate(seed: int, bug: str = "") -> Outcome:
    """Try one seed, with a bug of `planted` if given. A seed's result does not depend on earlier trials."""
    with logged_nowhere(), in_memory():
        trial = Trial(seed)
        with planted(bug), replaced(seed, trial.world, trial.bucket, trial.folders):
            outcome = trial.run()
        remote.let_go_of_copies()
        return outcome
