"""Simulated time and processes: greenlets that run one at a time, in an order set by a seed.

A process may be killed (it sends no more requests, but sent ones may still arrive) or frozen for some time, and its
machine's clock may jump.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from heapq import heappop, heappush
from typing import Any, Self

from greenlet import getcurrent, greenlet

BEGIN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
REQUEST_SECONDS = 0.001, 0.2
"""Range of the seconds of a request."""


MEETING = 60.0
"""Clients that should meet continue at multiples of this many seconds."""


class Killed(BaseException):
    """Raised in the code of a process that was killed."""


@dataclass
class Machine:
    """A computer, whose clock may be wrong, and whose disk may be full."""

    name: str
    offset: float = 0.0
    full_until: float = 0.0


@dataclass(eq=False)
class Process:
    """A process on a machine, with one or more threads."""

    pid: int
    name: str
    machine: Machine
    started: float
    alive: bool = True
    frozen_from: float = 0.0
    frozen_until: float = 0.0
    threads: list["Thread"] = field(default_factory=list)

    def freeze(self, until: float) -> None:
        """Freeze until a time."""
        self.frozen_until = until
        for thread in self.threads:
            thread.wake_at(thread.wakes)


class Thread:
    """A thread of a process. `wakes` is the time that it waits for, `when` the time when it can continue.

    A `sent` thread, such as a request under way, continues without its process.
    """

    def __init__(self, process: Process, work: Callable[[], object], world: "World", sent: bool = False) -> None:
        self.process, self.sent, self._world, self.turn = process, sent, world, 0
        self.greenlet = greenlet(self._run, world.hub)
        self._work = work
        process.threads.append(self)
        world.threads.append(self)
        self.wake_at(world.now)

    def wake_at(self, wakes: float) -> None:
        thaws = self.process.frozen_until
        self.wakes, self.when = wakes, thaws if thaws > wakes and not self.sent else wakes
        self._world.queue(self)

    def _run(self) -> None:
        with suppress(Killed):
            self._work()


class World:
    """All processes, and the clock for their waits. `stepped` is called after each step."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now, self.steps, self._most, self._pids = BEGIN, 0, 0, 100
        self.stepped: Callable[[], None] = lambda: None
        self.hub = getcurrent()
        self.running: Thread | None = None
        self.threads: list[Thread] = []
        self._turns = 0
        self._queue: list[tuple[float, int, Thread]] = []

    @property
    def processes(self) -> list[Process]:
        """The processes that have not ended."""
        return list(dict.fromkeys(thread.process for thread in self.threads))

    def start(self, name: str, machine: Machine, work: Callable[[], object]) -> Process:
        self._pids += 1
        process = Process(self._pids, name, machine, self.now)
        Thread(process, work, self)
        return process

    def run(self, most: int) -> bool:
        """Run threads, each to its next request, until all have ended or `most` steps since the beginning are reached.

        Returns whether all have ended.
        """
        self._most = most
        while self.threads and self.steps < most:
            self.running = self._next()
            self.running.greenlet.switch()
            self._remove_ended()
        return not self.threads

    def _remove_ended(self) -> None:
        if (ended := self.running) is not None:  # else the limit of steps was reached
            self.threads.remove(ended)
            ended.process.threads.remove(ended)
            self._step()

    def _step(self) -> None:
        self.running = None
        self.steps += 1
        self.stepped()

    def _next(self) -> Thread:
        """The next thread: a random one of those that can continue first."""
        due = list[Thread]()
        while self._queue and (not due or self._queue[0][0] <= self.now):
            _, turn, thread = heappop(self._queue)
            if turn == thread.turn:  # else it was queued again since
                due.append(thread)
                self.now = max(self.now, thread.when)
        if len(due) == 1:
            return due[0]
        chosen = self.draw.choice(due)
        for thread in due:
            if thread is not chosen:
                self.queue(thread)
        return chosen

    def queue(self, thread: Thread) -> None:
        """Queue a thread, replacing its earlier turn."""
        self._turns += 1
        thread.turn = self._turns
        heappush(self._queue, (thread.when, thread.turn, thread))

    def forget_all(self) -> None:
        """Remove all threads."""
        self.threads.clear()
        self._queue.clear()

    def kill(self, process: Process) -> None:
        """Kill a process at its present point."""
        process.alive, process.frozen_until = False, self.now
        for thread in process.threads:
            thread.wake_at(thread.wakes if thread.sent else self.now)

    @property
    def process(self) -> Process:
        assert self.running is not None
        return self.running.process

    def sleep(self, seconds: float) -> None:
        """Run other threads for a time. Raises `Killed` if this process was killed meanwhile."""
        running = self.running
        if running is None:  # a check from outside the simulation
            return
        process = running.process
        if not (process.alive or running.sent):
            raise Killed
        running.wake_at(self.now + max(0.0, seconds))
        self._step()
        if self.steps >= self._most:
            self.hub.switch()
        else:
            self.running = chosen = self._next()
            if chosen is not running:
                chosen.greenlet.switch()
        if not (process.alive or running.sent):
            raise Killed

    def require_alive(self) -> None:
        """Raise `Killed` in a process that was killed."""
        if self.runs_killed():
            raise Killed

    def runs_killed(self) -> bool:
        """Whether the running thread belongs to a killed process."""
        return self.running is not None and not (self.running.process.alive or self.running.sent)

    def request(self) -> None:
        """Wait for the time before a request takes effect, or before its answer arrives."""
        least, most = REQUEST_SECONDS
        self.sleep(least + (most - least) * self.draw.random())

    def clock(self) -> float:
        """The time on the running process's machine."""
        return self.now + (self.running.process.machine.offset if self.running else 0.0)

    def monotonic(self) -> float:
        return self.now


def pause(world: World, most: float) -> None:
    """Wait for a random time, often none, or until a time when other clients continue too, so that they meet."""
    kind = world.draw.randrange(4)
    if kind == 1:
        world.sleep(world.draw.uniform(0.0, 3.0))
    elif kind == 2:
        world.sleep(MEETING - world.now % MEETING)
    elif kind == 3:
        world.sleep(world.draw.uniform(0.0, most))


def wrong_clock(world: World) -> type[datetime]:
    """`datetime` by a machine's clock."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(world.clock(), tz)

    return Wrong


class Bell:
    """Wakes the threads that wait for it."""

    def __init__(self, world: World) -> None:
        self._world, self._waiting = world, list[Thread]()

    def wait(self, seconds: float = float("inf")) -> None:
        """Wait until it rings, at most for some time."""
        thread = self._world.running
        assert thread is not None
        self._waiting.append(thread)
        try:
            self._world.sleep(seconds)
        finally:
            self._waiting.remove(thread)

    def ring(self, *_: object) -> None:
        for thread in self._waiting:
            thread.wake_at(min(thread.wakes, self._world.now))


class Awaited:
    """A future for which a thread waits in simulated time."""

    def __init__(self, world: World) -> None:
        self._bell, self._done = Bell(world), False
        self._result: Any = None
        self._error: Exception | None = None

    def do(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Do the work and store its result or error."""
        try:
            self._result = work(*arguments)
        except Exception as error:
            self._error = error
        self._done = True
        self._bell.ring()

    def result(self) -> Any:
        while not self._done:
            self._bell.wait()
        if self._error is not None:
            raise self._error
        return self._result


class Pool:
    """`ThreadPoolExecutor` of a simulated process."""

    def __init__(self, world: World, max_workers: int = 8, **_: Any) -> None:
        self._world, self._free = world, max_workers
        self._left = deque[tuple[Awaited, Callable[..., Any], tuple[Any, ...]]]()
        self._all: list[Awaited] = []

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Awaited:
        done = Awaited(self._world)
        self._all.append(done)
        if self._world.running is None:  # a check from outside the simulation
            done.do(work, *arguments)
            return done
        self._left.append((done, work, arguments))
        if self._free:
            self._free -= 1
            Thread(self._world.process, self._work, self._world)
        return done

    def _work(self) -> None:
        while self._left:
            done, work, arguments = self._left.popleft()
            done.do(work, *arguments)
        self._free += 1

    def map(self, work: Callable[..., Any], *many: Iterable[Any]) -> Iterator[Any]:
        asked = [self.submit(work, *each) for each in zip(*many, strict=False)]
        return (each.result() for each in asked)

    def shutdown(self, *_: Any) -> None:
        for each in self._all:
            with suppress(Exception):
                each.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class Event:
    """`threading.Event` of a simulated process."""

    def __init__(self, world: World) -> None:
        self._bell, self._set = Bell(world), False

    def set(self) -> None:
        self._set = True
        self._bell.ring()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        if not self._set:
            self._bell.wait(timeout)
        return self._set


class Lock:
    """`threading.Lock` of a simulated process."""

    def __init__(self, world: World) -> None:
        self._bell, self._held = Bell(world), False

    def __enter__(self) -> None:
        while self._held:
            self._bell.wait()
        self._held = True

    def __exit__(self, *error: object) -> None:
        self._held = False
        self._bell.ring()


class Threading:
    """The parts of `threading` that a lease uses."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Event(self) -> Event:
        return Event(self._world)

    def Lock(self) -> Lock:
        return Lock(self._world)

    def Thread(self, target: Callable[[], object], **_: Any) -> "Started":
        return Started(self._world, target)


class Started:
    """A thread started by the code under test."""

    def __init__(self, world: World, target: Callable[[], object]) -> None:
        self._world, self._target, self._ended = world, target, Awaited(world)

    def start(self) -> None:
        Thread(self._world.process, partial(self._ended.do, self._target), self._world)

    def join(self) -> None:
        self._ended.result()
