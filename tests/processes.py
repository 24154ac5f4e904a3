"""Real processes for tests: start, watch and kill them, and read their state from /proc.

`run_module` and `start_module` use `python -m`. `start_warm` runs a module's `main` in a process forked from a server
that has already imported the heavy libraries. Signals, files and exit statuses behave the same, but it starts seconds
earlier.

A single process gets one core, and pytest's workers use different cores. Training then uses one thread, which suits
tiny models; on a busy machine, threads that synchronize many times per step can be a hundred times slower. The core is
always the same, because a worker process with loaded libraries is replaced if its surroundings, such as its cores,
change.
"""

import atexit
import glob
import importlib
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

PRELOADED = [
    "trainer.__main__", "trainer.training.run", "trainer.kinds.pretraining.evaluate",
    "trainer.kinds.pretraining.preflight",
    "trainer.registry.report", "transformers.models.gpt2.modeling_gpt2", "tensorboard.summary.writer.record_writer",
    "matplotlib.figure", "matplotlib.backends.backend_svg",
]  # fmt: skip

GPU = Path("/dev/nvidiactl")
"""Exists on machines with a GPU."""

_warm = multiprocessing.get_context("forkserver")
_warm.set_forkserver_preload(PRELOADED)

_reading_status = threading.Lock()
"""Held when a warm process's status may be read, which multiprocessing does without a lock, also when any other process
starts: of two threads that read it at once, one would see the end of the pipe and report 255.
"""


_cores = sorted(os.sched_getaffinity(0))
_first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_alone: list[tuple[int, int]] = []
"""Processes that were started on one core, and their cores."""


class Ended(NamedTuple):
    """The result of a process. A negative status is the signal that ended it."""

    status: int
    stdout: str
    stderr: str


class Running:
    """A started process and the files of its output."""

    def __init__(self, process: subprocess.Popen[bytes] | multiprocessing.process.BaseProcess, said: Path) -> None:
        self._process, self._said = process, said
        assert process.pid is not None
        self.pid = process.pid

    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        with _reading_status:
            return self._process.exitcode

    def wait(self, seconds: float = 120.0) -> Ended:
        """Wait until it ends; after a timeout, kill it and fail the test, which could take the -9 for its own kill."""
        in_time = self._ends_within(seconds)
        ended = self.end_within(0.0)
        assert in_time, f"did not end within {seconds:g} s: {ended}"
        return ended

    def end_within(self, seconds: float) -> Ended:
        """Wait until it ends; after a timeout, kill it."""
        if not self._ends_within(seconds):
            self._process.kill()
            self._ends_within(None)
        status = self.status()
        assert status is not None
        return Ended(status, *self.output())

    def _ends_within(self, seconds: float | None) -> bool:
        if isinstance(self._process, subprocess.Popen):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            multiprocessing.connection.wait([self._process.sentinel], seconds)
        return self.status() is not None

    def output(self) -> tuple[str, str]:
        """Its standard output and standard error so far."""
        stdout, stderr = ((self._said / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return stdout, stderr

    def send(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    def send_when(self, signum: signal.Signals, condition: Callable[[], bool]) -> Ended:
        """Send a signal as soon as a condition holds, which must be before the process ends; then wait for the end."""
        wait_until(lambda: condition() or self.status() is not None)
        if self.status() is not None:
            raise AssertionError(f"ended too early: {self.wait()}")
        self.send(signum)
        return self.wait()


def start_module(
    said: Path, module: str, *arguments: object, env: Mapping[str, str] = {}, count: int = 1, folder: Path = ROOT
) -> Running:
    """Start `python -m module arguments` on a number of cores, with a folder's modules."""
    said.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, *map(str, arguments)]
    which = _free(count)
    with open(said / "stdout", "wb") as stdout, open(said / "stderr", "wb") as stderr, _pinned(which):
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=stdout, stderr=stderr)
    return _placed(Running(process, said), which)


def start_warm(said: Path, module: str, *arguments: object, env: Mapping[str, str] = {}, count: int = 1) -> Running:
    """Start a module's `main(arguments)`, on a number of cores, in a process forked from the warm server.

    On a machine with a GPU, `python -m` is used instead: CUDA cannot be initialized in a fork of a process that has
    queried it.
    """
    if GPU.exists():
        return start_module(said, module, *arguments, env=env, count=count)
    said.mkdir(parents=True, exist_ok=True)
    which = _cores if "RANK" in env else _free(count)
    process = _warm.Process(target=_become, args=(module, list(map(str, arguments)), str(said), dict(env), which))
    with _reading_status:
        process.start()
    return _placed(Running(process, said), which)


def start_ranks(said: Path, ranks: int, module: str, *arguments: object) -> list[Running]:
    """Start a module on several ranks of one process group, like torchrun."""
    return [start_warm(said / str(rank), module, *arguments, env=env) for rank, env in enumerate(rank_envs(ranks))]


def rank_envs(ranks: int) -> list[dict[str, str]]:
    """The environment of each rank of a process group on this machine."""
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def start_trainers(said: Path, config: Path, ranks: int = 1, *words: object) -> list[Running]:
    """Start training a job on some ranks."""
    module, arguments = "trainer.__main__", (config, *words)
    return start_ranks(said, ranks, module, *arguments) if ranks > 1 else [start_warm(said, module, *arguments)]


def finish(said: Path, config: Path, ranks: int = 1, *words: object) -> list[Ended]:
    """Train to the end on some ranks."""
    ended = [rank.wait() for rank in start_trainers(said, config, ranks, *words)]
    assert [rank.status for rank in ended] == [0] * ranks, ended
    return ended


def cores(count: int) -> AbstractContextManager[None]:
    """Run this thread and its children on a number of cores, always the same, during the block."""
    return _pinned(_own(count))


def _own(count: int, offset: int = 0) -> list[int]:
    return [_cores[(_first + offset + number) % len(_cores)] for number in range(count)]


def _free(count: int) -> list[int]:
    """The cores for a process: this worker's own, unless another of its processes uses that core alone."""
    # Does not poll the processes: that would take the exit status from a thread that waits for one.
    _alone[:] = [(pid, core) for pid, core in _alone if alive(pid)]
    taken = {core for _, core in _alone}
    free = [offset for offset in range(len(_cores)) if taken.isdisjoint(_own(1, offset))]
    return _own(count, free[0] if free else 0)


def _placed(running: Running, which: Sequence[int]) -> Running:
    if len(which) == 1:
        _alone.append((running.pid, which[0]))
    return running


@contextmanager
def _pinned(which: Sequence[int]) -> Iterator[None]:
    os.sched_setaffinity(0, which)
    try:
        yield
    finally:
        os.sched_setaffinity(0, _cores)


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Poll until a condition holds. Raises `AssertionError` after a timeout."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.002)


def being_written(store: Path, pattern: str) -> bool:
    """Whether a store's staged files that match a pattern have content.

    `Path.glob` raises an error when a folder goes to its place meanwhile; `glob.glob` does not.
    """
    with suppress(FileNotFoundError):
        return any(os.stat(path).st_size for path in glob.glob(str(store / ".staging" / pattern)))
    return False


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread during the block; raise its error after the block."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        yield
        acting.result()


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Different free ports below those that the kernel hands out by itself: a server that binds one seconds later does
    not find a connection or another test's server there. Seeds that a test sets do not decide which: two test processes
    with the same seed would take the same ports."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(range(20_000, 30_000), 1_000):
            with suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise AssertionError("no ports are free")


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """A process's children."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def highest(look: Callable[[], float], every: float) -> Iterator[list[float]]:
    """Poll a figure during the block; yield a list with its maximum."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            peak[0] = max(peak[0], look())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def descendants(pid: int) -> list[int]:
    """A process's descendants."""
    return [found for child in children(pid) for found in [child, *descendants(child)]]


def kill_all(pid: int) -> None:
    """Kill a process and its descendants, which may already have ended."""
    for each in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def stages(pid: int) -> list[int]:
    """The processes in which a process's stages run, including launchers and ranks."""
    return [each for each in descendants(pid) if name_of(each).startswith("stage ")]


def name_of(pid: int) -> str:
    return _read(pid, "comm").rstrip("\n")


def parent_of(pid: int) -> int:
    return int(_read(pid, "stat").rpartition(") ")[2].split()[1])


def command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def _read(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _become(module: str, arguments: Sequence[str], said: str, env: Mapping[str, str], which: Sequence[int]) -> None:
    os.environ.update(env)
    os.sched_setaffinity(0, which)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{said}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(ROOT)
    try:
        status = importlib.import_module(module).main(list(arguments))
    finally:
        atexit._run_exitfuncs()  # missing in a process started by multiprocessing
    sys.exit(status)
