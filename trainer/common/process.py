"""Control of this process: parent, name, memory, cores and threads, rank, exit status, and package versions."""

import atexit
import ctypes
import gc
import math
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

from trainer.common.cgroups import cpu_quota
from trainer.common.display import escape_unprintable, escaped
from trainer.common.errors import EXIT_PREEMPTED, ConfigError, FirstRankFailed, PipelineError, Preempted
from trainer.common.stopping import check_stop, stoppable
from trainer.common.transient import exit_status

THREADS = "OMP_NUM_THREADS"
LAUNCHERS = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Environment variables that torchrun and `accelerate launch` set for the processes that they start."""

T = TypeVar("T")

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel signal this process when its parent ends, so that a killed pipeline leaves no orphans.

    `parent` is the expected parent process id; if that process has already ended, exit immediately. Linux only;
    elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        sys.exit(128 + signum)


def name_process(name: str) -> None:
    """Set the name (up to 15 bytes) that `ps -o comm` and `top` show for this process. Linux only; elsewhere this does
    nothing.
    """
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` in a daemon thread, which the process does not wait for when it ends; return its future."""
    outcome: Future[T] = Future()

    def settle() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=settle, name=name, daemon=True).start()
    return outcome


def same_code() -> dict[str, str]:
    """The environment of a child that is to import the code of this process, whatever is installed: if this code is in
    a project's folder, that folder is searched first.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}


class QuickEnd:
    """Ends the process without destroying its objects, which takes a third of a second once libraries are loaded.

    Only `atexit` functions registered after this object was created are run, so create it first.
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
    """Have glibc return freed memory to the system; after training this can be gigabytes in fragments."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def return_large_buffers() -> None:
    """Have glibc return freed buffers of 128 KiB and more to the system immediately.

    By default glibc raises that threshold with every large buffer freed. A process that reads and encodes a few MiB at
    a time would then keep several times the memory it uses, in fragments.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 128 * 1024)


def keep_large_buffers() -> None:
    """Have glibc keep freed buffers of up to 32 MiB for reuse, for work that repeatedly allocates the same sizes.

    A new buffer costs a page fault for each 4 KiB: a third of the time of the work itself.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 64 * 2**20)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def granted_cores() -> int:
    """The cores that this process can keep busy: in a container, its CPU limit may be less than the machine's cores."""
    cores, quota = usable_cores(), cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cores_per_rank(cores: int | None = None) -> int:
    """This process's share of the cores, by default of the granted ones; at least one."""
    return max(1, (cores or granted_cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def threads_asked_for() -> int | None:
    """The number of threads that the user set with OMP_NUM_THREADS, or None; raises `ConfigError` if it is invalid.

    A launcher sets the variable itself if the user did not; in that case the launcher's own environment lacks it.
    """
    value = os.environ.get(THREADS, "")
    if not value or (any(name in os.environ for name in LAUNCHERS) and not _parent_was_given(THREADS)):
        return None
    first = value.split(",")[0].strip()  # further entries are for nested parallel regions
    if not first.isdecimal() or int(first) < 1:
        raise ConfigError(
            f"the environment variable {THREADS} is {value!r}, expected a number of threads; correct or unset it"
        )
    return int(first)


def _parent_was_given(variable: str) -> bool:
    """Whether the parent process was started with an environment variable; True if this cannot be determined."""
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
    """Do a command's work; return 0, 2 on bad input, 75 if it can be continued, 1 on other errors. Prints errors."""
    escape_unprintable()
    try:
        with stoppable():
            check_stop()
            work()
    except Preempted as stop:
        print_error(str(stop))
        return EXIT_PREEMPTED
    except FirstRankFailed as error:
        return exit_status(error)
    except Exception as error:
        print_error(
            f"{type(error).__name__}: {error}" if isinstance(error, PipelineError) else traceback.format_exc().rstrip()
        )
        return exit_status(error)
    return 0


def print_error(message: str) -> None:
    """Write a message in one call, so that messages of several ranks do not interleave."""
    rank = own_rank()
    with suppress(OSError):  # the terminal may be closed
        sys.stderr.write(f"{'' if rank is None else f'[rank {rank}] '}{escaped(message, sys.stderr)}\n")
        sys.stderr.flush()


PACKAGES = [
    "headrace", "torch", "transformers", "tokenizers", "gigatoken", "accelerate", "peft", "safetensors", "numpy",
    "fsspec", "prefect",
]  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of the installed packages among `PACKAGES`."""
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


def _version(package: str) -> str | None:
    """A package's version, or None if it is not installed; a machine that only trains does not need Prefect."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection while a block loads libraries, and exclude their objects from later collections."""
    enabled, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > loaded:  # otherwise no library was loaded, and the objects are the program's own
            gc.freeze()
        if enabled:
            gc.enable()
