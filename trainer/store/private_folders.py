"""Private folders of processes, removal of those whose process has ended, and the files that a process has open.

    HOST_KERNEL_0123456789ab         the files that the process writes
    HOST_KERNEL_0123456789ab.lock    locked by the process until it ends, in whatever way

Process ids are not used: each container has its own, and they repeat.

Files are read, not memory-mapped: the kernel limits the number of mappings per process, a truncated file would end the
process by a signal, and mapped bytes may change between their verification and their use.
"""

import fcntl
import os
import re
import resource
import shutil
import socket
import time
import uuid
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from weakref import finalize

STAGING = ".staging"
"""Parent of private folders, in a store's root and in each subfolder that is a link to another disk."""

LOCK = ".lock"
"""Suffix of a private folder's lock file."""

PRIVATE = re.compile(r".+_[^_]+_[0-9a-f]{12}")
"""Names of private folders."""

OLD_SECONDS = 24 * 60 * 60


class PrivateFolder:
    """A new folder of this process below an existing one; the process holds its lock file until it ends.

    A forked child also holds the lock but leaves the folder to its parent; started programs do not inherit the lock.
    """

    def __init__(self, base: Path) -> None:
        self.path = base / f"{socket.gethostname()}_{_kernel()}_{uuid.uuid4().hex[:12]}"
        self._process, self._descriptor = os.getpid(), _held(_lock_of(self.path))
        try:
            self.path.mkdir()
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder and then its lock, so that `sweep` can remove the remains after a kill in between."""
        if os.getpid() != self._process:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.path.exists():
            with suppress(OSError):
                _lock_of(self.path).unlink()
        os.close(self._descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents if missing. Usually they exist, and checking first is faster."""
    if not os.path.isdir(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def followed(folder: Path) -> Iterator[Path]:
    """Yield a path that refers to a folder even after it is moved, for libraries that create missing folders.

    Such a library would otherwise create a new folder in place of an unmounted store.
    """
    if not Path("/proc/self/fd").is_dir():
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def sweep(base: Path) -> None:
    """Remove the private folders of processes that are known to have ended.

    A process that holds a folder's lock is alive, in whatever container. On some file systems locks are not visible to
    other machines, so a folder of another machine (machines must have different host names) must also be old. The same
    holds for a folder without a lock file. If locking fails, nothing is removed.
    """
    names = {path.name.removesuffix(LOCK) for path in base.iterdir()} if base.is_dir() else set()
    for name in filter(PRIVATE.fullmatch, names):
        with suppress(OSError):  # locked, already removed, or unknown
            _remove_if_abandoned(base / name)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove an abandoned folder; raise `OSError` if it is locked or cannot be removed."""
    lock = _lock_of(folder)
    if not lock.exists():
        if _is_old(folder):
            shutil.rmtree(folder)
        return
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_of_this_machine(folder.name) or _is_old(folder):
            if folder.exists():
                shutil.rmtree(folder)
            lock.unlink()
    finally:
        os.close(descriptor)


def _held(lock: Path) -> int:
    """Create and lock a file; return its descriptor."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without locks: `sweep` removes nothing there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if lock.exists():
            return descriptor
        os.close(descriptor)  # another process removed it before it was locked


def _lock_of(folder: Path) -> Path:
    return Path(f"{folder}{LOCK}")


def _is_of_this_machine(name: str) -> bool:
    """Whether a private folder was created on this machine: under this kernel, or this host name before a reboot."""
    host, kernel, _ = name.rsplit("_", 2)
    return host == socket.gethostname() or kernel == _kernel()


def _kernel() -> str:
    """An id that all containers of a machine share until it reboots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:13]
    except OSError:
        return socket.gethostname()


def _is_old(folder: Path) -> bool:
    """Whether nothing in a private folder has changed for a day; False if it is gone, removed by its own process."""
    changed = []
    for path in (folder, _lock_of(folder), *files_below(folder)):
        with suppress(FileNotFoundError):
            changed.append(path.stat().st_mtime)
    return time.time() - max(changed, default=time.time()) > OLD_SECONDS


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder; folders that other processes remove meanwhile are skipped.

    Raises `PermissionError` for an unreadable folder, except a disk's lost+found.
    """

    def handle(error: OSError) -> None:
        foreign = isinstance(error, PermissionError) and Path(error.filename) == folder / "lost+found"
        if not foreign and not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for top, _, names in os.walk(folder, onerror=handle):
        yield from (Path(top, name) for name in names)


SHARE = 4
"""One in this many of the process's file descriptors is used here; the rest is for libraries, pipes and sockets."""

FEWEST, MOST = 8, 1024


class OpenFile:
    """An open file, closed when no longer referenced; `sums` caches its blocks' checksums while it is open.

    `identity` changes if the file or its content is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finalize(self, os.close, self._descriptor)
        state = os.fstat(self._descriptor)
        self.identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
        self.sums: bytes | None = None

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, or fewer at the end of the file."""
        return os.pread(self._descriptor, end - start, start)


class OpenFiles:
    """The `limit` most recently read files; the least recently read are closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[Hashable, OpenFile] = OrderedDict()
        self._turn = Lock()

    def get(self, reader: Hashable, path: Path) -> OpenFile:
        """Return a reader's open file; raise `OSError` if it cannot be opened."""
        with self._turn:
            found = self._files.get(reader)
            if found is None:
                while len(self._files) >= self._limit:
                    self._files.popitem(last=False)
                found = self._files[reader] = OpenFile(path)
            else:
                self._files.move_to_end(reader)
            return found

    def close(self, reader: Hashable) -> None:
        """Release a reader's file; reads in progress continue."""
        with self._turn:
            self._files.pop(reader, None)

    def close_all(self) -> None:
        """Release the files of all readers."""
        with self._turn:
            self._files.clear()


@cache
def open_files() -> OpenFiles:
    """This process's open files: the limit applies to the process, not to each corpus that it reads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(MOST if soft == resource.RLIM_INFINITY else max(FEWEST, min(MOST, soft // SHARE)))
