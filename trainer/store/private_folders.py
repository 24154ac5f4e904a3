"""Private folders of processes, told from those of processes that live no longer, and the files that they have open.

    HOST_KERNEL_0123456789ab         what the process writes
    HOST_KERNEL_0123456789ab.lock    held by the process until it ends, however it ends

A process's number would tell less: containers have numbers of their own, which repeat.

Bytes are read, not mapped: a kernel also bounds how many files a process maps, a file that was cut short would end it
by a signal, and of a mapped file what is compared and what is used later need not be the same bytes.
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
"""The folder of a store, and of a folder right in it that is a link to another disk, that holds private ones."""

LOCK = ".lock"
"""Ends the name of the file beside a private folder that its process holds."""

PRIVATE = re.compile(r".+_[^_]+_[0-9a-f]{12}")
"""What private folders are called."""

OLD_SECONDS = 24 * 60 * 60


class PrivateFolder:
    """A new folder of this process below one that is there, which holds the lock beside it until it ends.

    A forked child holds the lock too, and leaves the folder to its parent; a program that is started does not inherit
    it.
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
        """Remove it with all that is still in it. The lock goes last: what is left when a kill comes between can be
        swept.
        """
        if os.getpid() != self._process:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.path.exists():
            with suppress(OSError):
                _lock_of(self.path).unlink()
        os.close(self._descriptor)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, as far as they are not there: mostly all are, and to look takes less time."""
    if not os.path.isdir(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def followed(folder: Path) -> Iterator[Path]:
    """A path that leads to a folder wherever it is moved, for libraries that make the folder which they are to write
    to.

    Of a store that was taken away, they would make another one in its place.
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
    """Remove the private folders of processes that live no longer, and nothing of which that cannot be told.

    Whoever holds a folder's lock lives, in whatever container. Some file systems keep each machine's locks to itself:
    what is from elsewhere (machines that share one must have names of their own) must be old as well. So must what has
    lost its lock. Where locking fails, all is kept.
    """
    names = {path.name.removesuffix(LOCK) for path in base.iterdir()} if base.is_dir() else set()
    for name in filter(PRIVATE.fullmatch, names):
        with suppress(OSError):  # it is held, or just gone, or cannot be judged
            _remove_if_abandoned(base / name)


def _remove_if_abandoned(folder: Path) -> None:
    """Raises `OSError` if it is not known to be abandoned, or cannot be removed."""
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
    """Make a file and lock it: the descriptor."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without locks, where nothing is swept
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if lock.exists():
            return descriptor
        os.close(descriptor)  # it was swept before it was locked


def _lock_of(folder: Path) -> Path:
    return Path(f"{folder}{LOCK}")


def _is_of_this_machine(name: str) -> bool:
    """Whether a private folder was made under this kernel, in any container, or on a host of this name, before a
    restart.
    """
    host, kernel, _ = name.rsplit("_", 2)
    return host == socket.gethostname() or kernel == _kernel()


def _kernel() -> str:
    """What all containers of a machine have in common until it is started again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:13]
    except OSError:
        return socket.gethostname()


def _is_old(folder: Path) -> bool:
    """Whether nothing in a private folder has changed for a day. What is gone by now is not old: its process has ended
    well.
    """
    changed = []
    for path in (folder, _lock_of(folder), *files_below(folder)):
        with suppress(FileNotFoundError):
            changed.append(path.stat().st_mtime)
    return time.time() - max(changed, default=time.time()) > OLD_SECONDS


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below a folder in which others work: folders that are gone when their turn comes hold none.

    Raises `PermissionError` for one that may not be read, unless it is what a disk's root has of its own.
    """

    def tell(error: OSError) -> None:
        foreign = isinstance(error, PermissionError) and Path(error.filename) == folder / "lost+found"
        if not foreign and not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for top, _, names in os.walk(folder, onerror=tell):
        yield from (Path(top, name) for name in names)


SHARE = 4
"""A process keeps one of so many file descriptors that it may have for this; the rest is for libraries, pipes and
sockets.
"""

FEWEST, MOST = 8, 1024


class OpenFile:
    """A file's descriptor, closed when nobody reads it any more; `sums` keeps what belongs to it as long as it is open.

    `identity` changes when another file, or other content, takes its place.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finalize(self, os.close, self._descriptor)
        state = os.fstat(self._descriptor)
        self.identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
        self.sums: bytes | None = None

    def read(self, start: int, end: int) -> bytes:
        """The bytes from one offset to another, or as many of them as there are."""
        return os.pread(self._descriptor, end - start, start)


class OpenFiles:
    """The files that were read last; of more than `limit`, those that were read longest ago are closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[Hashable, OpenFile] = OrderedDict()
        self._turn = Lock()

    def get(self, reader: Hashable, path: Path) -> OpenFile:
        """The file that a reader reads. Raises `OSError` if it cannot be opened."""
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
        """Let go of a reader's file; whoever is reading it goes on."""
        with self._turn:
            self._files.pop(reader, None)

    def close_all(self) -> None:
        """Let go of the files of all readers."""
        with self._turn:
            self._files.clear()


@cache
def open_files() -> OpenFiles:
    """Those of this process: the limit is the process's, not that of each corpus that it reads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(MOST if soft == resource.RLIM_INFINITY else max(FEWEST, min(MOST, soft // SHARE)))
