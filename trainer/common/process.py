"""This process: its parent, its cores and threads, its rank and exit status, and the versions that it runs."""

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, TypeVar

from trainer.common.errors import EXIT_PREEMPTED, ConfigError, FirstRankFailed, PipelineError, Preempted
from trainer.common.stopping import check_stop, stoppable
from trainer.common.transient import exit_status

THREADS = "OMP_NUM_THREADS"
LAUNCHERS = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Set in the environment of what torchrun or `accelerate launch` has started."""

T = TypeVar("T")

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends, so that a killed pipeline leaves no orphan.

    `parent` is the process id of the parent that this process expects: if it is gone already, exit at once. Linux only;
    elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        sys.exit(128 + signum)


def name_process(name: str) -> None:
    """Give this process a name of up to 15 bytes, which `ps -o comm` and `top` show. Linux only; elsewhere nothing
    happens.
    """
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """What is done in a thread that the process does not wait for at its end."""
    outcome: Future[T] = Future()

    def settle() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=settle, name=name, daemon=True).start()
    return outcome


class QuickEnd:
    """Ends a process without taking its objects apart, which takes a third of a second once libraries are loaded.

    What is registered to be done at the end is done, if it was registered after this was made: so this is made first.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._end)

    def __call__(self, status: int) -> NoReturn:
        self._status = status
        sys.exit(status)

    def _end(self) -> None:
        if self._status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._status)


def return_freed_memory() -> None:
    """Have glibc give back to the system what was freed and it keeps for later, in fragments: gigabytes after
    training.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def return_large_buffers() -> None:
    """Have glibc give freed buffers of 128 KiB and more back to the system at once.

    Left to itself it raises that bound with every large buffer freed, and then keeps, in fragments, several times what
    a process uses that reads and encodes a few MiB at a time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 128 * 1024)


def keep_large_buffers() -> None:
    """Have glibc keep freed buffers of up to 32 MiB for the next ones, for work that needs the same again and again.

    A new one costs a page fault for each 4 KiB: a third of the time that the work itself takes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 64 * 2**20)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_rank() -> int:
    """This process's share of the cores, at least one."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def threads_asked_for() -> int | None:
    """The threads that somebody asked for with OMP_NUM_THREADS, or None. Raises `ConfigError` if that is no number.

    Launchers set it themselves where nobody has; then their own environment lacks it.
    """
    said = os.environ.get(THREADS, "")
    if not said or (any(name in os.environ for name in LAUNCHERS) and not _parent_was_given(THREADS)):
        return None
    first = said.split(",")[0].strip()  # what follows is for regions within regions
    if not first.isdecimal() or int(first) < 1:
        raise ConfigError(
            f"the environment variable {THREADS} is {said!r}, not a number of threads; set it to one, or unset it"
        )
    return int(first)


def _parent_was_given(variable: str) -> bool:
    """Whether the process that started this one was itself started with a variable; where nothing tells, it was."""
    try:
        given = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(each.startswith(f"{variable}=".encode()) for each in given)


def own_rank() -> int | None:
    """This process's rank, if a launcher started several."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


def on_rank(work: Callable[[], None]) -> int:
    """Do a command's work. Returns 0, 2 on bad input, 75 if it can be continued, 1 on any other error; all tell why."""
    try:
        with stoppable():
            check_stop()
            work()
    except Preempted as stop:
        _tell(str(stop))
        return EXIT_PREEMPTED
    except FirstRankFailed as error:
        return exit_status(error)
    except Exception as error:
        _tell(
            f"{type(error).__name__}: {error}" if isinstance(error, PipelineError) else traceback.format_exc().rstrip()
        )
        return exit_status(error)
    return 0


def _tell(message: str) -> None:
    """Write a message at once, so that those of several ranks do not mix."""
    rank = own_rank()
    sys.stderr.write(f"{'' if rank is None else f'[rank {rank}] '}{message}\n")
    sys.stderr.flush()


PACKAGES = [
    "headrace", "torch", "transformers", "tokenizers", "gigatoken", "accelerate", "peft", "safetensors", "numpy",
    "fsspec", "prefect",
]  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


def _version(package: str) -> str | None:
    """A package's version; None where it is not installed, as Prefect need not be on a machine that only trains."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def loading() -> Iterator[None]:
    """For the length of a block that loads libraries. What they made stays, and is left out of all later
    collections.
    """
    enabled, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > loaded:  # else what is there is not the libraries'
            gc.freeze()
        if enabled:
            gc.enable()
