"""Time and processes that are not real: greenlets that go on one at a time, as a seed decides.

A process may be killed (it sends nothing afterwards; what it has sent may still arrive), frozen for a time, and its
machine's clock may jump.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

from greenlet import getcurrent, greenlet

BEGIN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
REQUEST_SECONDS = 0.001, 0.2
"""How long a request takes."""


class Killed(BaseException):
    """Raised in a process that does not exist any more, wherever it would go on."""


@dataclass
class Machine:
    """A computer, whose clock may be wrong, and whose disk may be full."""

    name: str
    offset: float = 0.0
    full_until: float = 0.0


@dataclass
class Process:
    """What runs on a machine, in one or more threads."""

    pid: int
    name: str
    machine: Machine
    started: float
    alive: bool = True
    frozen_until: float = 0.0
    threads: list["Thread"] = field(default_factory=list)


class Thread:
    """A thread of a process: when it goes on, and whether it has ended. One that is `sent` is out of its process's
    hands, as a request on its way: it goes on without it.
    """

    def __init__(self, process: Process, work: Callable[[], object], world: "World", sent: bool = False) -> None:
        self.process, self.wakes, self.sent = process, world.now, sent
        self._greenlet = greenlet(self._run, world.hub)
        self._work = work
        process.threads.append(self)

    def _run(self) -> None:
        with suppress(Killed):
            self._work()

    def go_on(self) -> None:
        self._greenlet.switch()

    @property
    def ended(self) -> bool:
        return self._greenlet.dead


class World:
    """All processes, and the clock by which they wait."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now, self.steps, self._pids = BEGIN, 0, 100
        self.hub = getcurrent()
        self.running: Thread | None = None
        self.processes: list[Process] = []

    def start(self, name: str, machine: Machine, work: Callable[[], object]) -> Process:
        self._pids += 1
        process = Process(self._pids, name, machine, self.now)
        self.processes.append(process)
        Thread(process, work, self)
        return process

    def step(self) -> bool:
        """Let one thread go on to its next request; returns whether there was any."""
        due = [(self._when(thread), thread) for each in self.processes for thread in each.threads]
        if not due:
            return False
        self.now = max(self.now, min(when for when, _ in due))
        self.running = chosen = self.draw.choice([thread for when, thread in due if when <= self.now])
        chosen.go_on()
        self.running = None
        self.steps += 1
        if chosen.ended:
            chosen.process.threads.remove(chosen)
            self.processes = [process for process in self.processes if process.threads]
        return True

    def kill(self, process: Process) -> None:
        """End a process where it stands."""
        process.alive = False
        for thread in process.threads:
            thread.wakes = thread.wakes if thread.sent else self.now
        process.frozen_until = self.now

    @staticmethod
    def _when(thread: Thread) -> float:
        wakes, thaws = thread.wakes, thread.process.frozen_until
        return thaws if thaws > wakes and not thread.sent else wakes

    @property
    def process(self) -> Process:
        assert self.running is not None
        return self.running.process

    def sleep(self, seconds: float) -> None:
        """Let others go on for so long. Raises `Killed` in a process that was killed meanwhile."""
        if self.running is None:  # of whoever looks at the store from outside
            return
        running = self.running
        self._require_alive(running)
        running.wakes = self.now + max(0.0, seconds)
        self.hub.switch()
        self._require_alive(running)

    @staticmethod
    def _require_alive(thread: Thread) -> None:
        if not (thread.process.alive or thread.sent):
            raise Killed

    def request(self) -> None:
        """What passes before a request has an effect, and before its answer comes."""
        self.sleep(self.draw.uniform(*REQUEST_SECONDS))

    def clock(self) -> float:
        """The time of the machine that asks."""
        return self.now + (self.running.process.machine.offset if self.running else 0.0)

    def monotonic(self) -> float:
        return self.now


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
        """Until it rings, at most for so long."""
        thread = self._world.running
        assert thread is not None
        self._waiting.append(thread)
        try:
            self._world.sleep(seconds)
        finally:
            self._waiting.remove(thread)

    def ring(self, *_: object) -> None:
        for thread in self._waiting:
            thread.wakes = min(thread.wakes, self._world.now)


class Awaited(Future[Any]):
    """A future for which a thread waits in this world's time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._bell = Bell(world)
        self.add_done_callback(self._bell.ring)

    def do(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Do the work, and have its result or its error."""
        try:
            self.set_result(work(*arguments))
        except Exception as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._bell.wait()
        return super().result(0)


class Pool:
    """`ThreadPoolExecutor` of a process that is not real."""

    def __init__(self, world: World, max_workers: int = 8, **_: Any) -> None:
        self._world, self._free = world, max_workers
        self._left = deque[tuple[Awaited, Callable[..., Any], tuple[Any, ...]]]()
        self._all: list[Awaited] = []

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Awaited:
        done = Awaited(self._world)
        self._all.append(done)
        if self._world.running is None:  # of whoever looks at the store from outside
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
    """`threading.Event` of a process that is not real."""

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
    """`threading.Lock` of a process that is not real."""

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
    """What of the module `threading` a lease takes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Event(self) -> Event:
        return Event(self._world)

    def Lock(self) -> Lock:
        return Lock(self._world)

    def Thread(self, target: Callable[[], object], **_: Any) -> "Started":
        return Started(self._world, target)


class Started:
    """A thread that the code under trial starts."""

    def __init__(self, world: World, target: Callable[[], object]) -> None:
        self._world, self._target, self._ended = world, target, Awaited(world)

    def start(self) -> None:
        Thread(self._world.process, self._work, self._world)

    def _work(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set_result(None)

    def join(self) -> None:
        self._ended.result()
