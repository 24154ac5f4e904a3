"""Verified copies of remote files, shared by the processes of a machine, in a folder that stays within a size.

    HEADRACE_CACHE         the folder; by default headrace in the user's cache folder
    HEADRACE_CACHE_BYTES   its size at most; by default 50 GB

A copy is named by what it must contain, and checked when it arrives and whenever it has changed since it was checked.
Whoever uses one is given a second name of it, in `work`; of those without, the least recently used make room for new
ones. Copies get names, and lose those in the folder, under one lock: else one could be let go of while somebody begins
to use it, and would be held without being counted.

What is fetched whole to be loaded, a model or a checkpoint, must be had whatever its size: its copies (`.beyond`) do
not count as long as they are in use, and the disk alone bounds them.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from trainer.common.errors import ConfigError, StorageError, WrongContent
from trainer.store.checked_files import FOLDER, RACY_SECONDS, machine_cache, opened_lock, require_content
from trainer.store.local import sync_file, sync_folder
from trainer.store.private_folders import make_folders

log = logging.getLogger(__name__)

SIZE = "HEADRACE_CACHE_BYTES"
DEFAULT_BYTES = 50 * 10**9

BEYOND = ".beyond"
"""Ends the name of a copy that does not count while it is in use."""

NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}(?P<beyond>\.beyond)?(\.[0-9a-f]{12}\.(?P<size>\d+))?")
"""A copy, or one that is being downloaded, with the size that it will have; nothing else in the folder is touched."""


class Copy(NamedTuple):
    """A file of the cache: when it was used last, its size when it is whole, and how many names it has."""

    used: float
    size: int
    names: int
    path: Path
    arrives: bool
    beyond: bool

    @property
    def in_use(self) -> bool:
        return self.names > 1 or self.arrives

    @property
    def counts(self) -> bool:
        """Whether it takes its size of the limit."""
        return not (self.beyond and self.in_use)


class BlobCache:
    """Files by their SHA-256 and the version that the store gave them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.limit = folder, limit
        self.work = folder / "work"
        """For the private folders of processes."""

    @classmethod
    def of_this_machine(cls) -> "BlobCache":
        """The cache that the environment describes."""
        size = os.environ.get(SIZE) or str(DEFAULT_BYTES)
        if not size.isdecimal():
            raise ConfigError(f"{SIZE} is {size!r}; it must be a number of bytes")
        return cls(machine_cache(), int(size))

    def give(
        self,
        target: Path,
        sha256: str,
        version: str,
        size: int,
        download: Callable[[Path], None],
        check: bool = False,
        beyond: bool = False,
    ) -> None:
        """Make `target` a second name of the copy, downloaded if need be; of several that want it at once, one
        downloads.

        A copy whose content has changed is replaced; with `check`, it is read even if it seems as it was when it was
        last checked. One that may go `beyond` the limit does not count while it is in use. Raises `WrongContent` if
        what arrives has another digest, `StorageError` if what is in use leaves no room.
        """
        name = f"{sha256}-{hashlib.sha256(version.encode()).hexdigest()[:16]}"
        make_folders(self._folder)
        with self._alone(name):
            if any(self._has(self._folder / f"{name}{end}", target, sha256, size, check) for end in ("", BEYOND)):
                return
            path = self._folder / (f"{name}{BEYOND}" if beyond else name)
            partial = self._make_room(path.name, size, beyond)
            try:
                download(partial)
                _make_older(partial)
                sync_file(partial)
                with self._alone("room"):
                    os.replace(partial, path)
                    _link(path, target)
                sync_folder(self._folder)
            finally:
                partial.unlink(missing_ok=True)
            _check_arrived(path, target, sha256)

    def trim(self) -> None:
        """Remove what was used least recently until what counts is within the limit: a model, say, that was let go
        of.
        """
        if not self._folder.is_dir():
            return
        with self._alone("room"):
            found = self._found()
            unused = sum(copy.size for copy in found if not copy.in_use)
            self._evict(found, min(unused, sum(copy.size for copy in found if copy.counts) - self.limit))

    def room_beyond(self) -> int:
        """Bytes that the disk has for what may go beyond the limit, if all that is not in use makes room."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unused = sum(copy.size for copy in self._copies() if not copy.in_use)
        return shutil.disk_usage(self._folder).free + unused

    def _has(self, path: Path, target: Path, sha256: str, size: int, check: bool) -> bool:
        """Give a copy that is there its second name; returns whether it is there and whole."""
        with suppress(FileNotFoundError):
            path.stat()  # else there is nothing to keep others out for
            with self._alone("room"):
                _link(path, target)
            if path.stat().st_size == size and not _is_discarded(path, sha256, check):
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
                return True
        target.unlink(missing_ok=True)
        return False

    def _make_room(self, name: str, size: int, beyond: bool) -> Path:
        """Remove what was used least recently until a file of this size fits, and claim the room: the path to download
        to.
        """
        with self._alone("room"):
            found = self._found(name)
            room = shutil.disk_usage(self._folder).free
            if not beyond:
                room = self.limit - sum(copy.size for copy in found if copy.counts)
            if not self._evict(found, size - room):
                raise StorageError(self._no_room(size, room) if beyond else self._too_small(size, found))
            partial = self._folder / f"{name}.{uuid.uuid4().hex[:12]}.{size}"
            partial.touch()
            return partial

    def _found(self, mine: str | None = None) -> list[Copy]:
        """All copies, those that were used least recently first, after downloads that were broken off are removed."""
        found = []
        for copy in sorted(self._copies()):
            if copy.arrives and not self._is_downloaded(copy.path.name, mine):
                copy.path.unlink(missing_ok=True)
            else:
                found.append(copy)
        return found

    @staticmethod
    def _evict(found: list[Copy], lacking: int) -> bool:
        """Remove copies that are not in use until so many bytes are gained; returns whether they are. Else none is
        removed.
        """
        unused = [copy for copy in found if not copy.in_use]
        if sum(copy.size for copy in unused) < lacking:
            return False
        for copy in unused:
            if lacking <= 0:
                break
            copy.path.unlink(missing_ok=True)
            lacking -= copy.size
        return True

    def _too_small(self, size: int, found: list[Copy]) -> str:
        taken = sum(copy.size for copy in found if copy.counts and copy.in_use)
        return (
            f"no room for {size:,} bytes in the cache {self._folder}: {taken:,} of its {self.limit:,} are in use; "
            f"raise {SIZE}"
        )

    def _no_room(self, size: int, free: int) -> str:
        return (
            f"no room for {size:,} bytes on the disk of the cache {self._folder}, which has {free:,} free; free some "
            f"there, or set {FOLDER} to a folder on a larger disk"
        )

    def _copies(self) -> Iterator[Copy]:
        for file in os.listdir(self._folder):
            name = NAME.fullmatch(file)
            if name is None:
                continue
            path = self._folder / file
            with suppress(FileNotFoundError):
                state = path.stat()
                size, arrives = int(name["size"] or state.st_size), name["size"] is not None
                yield Copy(state.st_atime, size, state.st_nlink, path, arrives, name["beyond"] is not None)

    def _is_downloaded(self, name: str, mine: str | None) -> bool:
        """Whether a process is at it: that one holds the lock, unless it is the lock that this one holds for its own
        file.
        """
        if mine is not None and self._lock(name) == self._lock(mine):
            return False
        with opened_lock(self._lock(name)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Keep other processes and threads out of the same block; one that dies lets go."""
        with opened_lock(self._lock(name)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _lock(self, name: str) -> str:
        return f"{self._folder}/{name if name == 'room' else name[:2]}.lock"


def _is_discarded(path: Path, sha256: str, anew: bool) -> bool:
    """Remove a copy that has changed since it arrived; returns whether it had."""
    try:
        require_content(path, sha256, anew, linked=True)
    except WrongContent as error:
        log.warning("%s %s: it has changed on this machine's disk, and is fetched again", path, error)
        path.unlink()
        return True
    return False


def _check_arrived(path: Path, target: Path, sha256: str) -> None:
    """Raise `WrongContent` unless a copy that was just fetched is what it must be; else it is not kept."""
    try:
        require_content(path, sha256, anew=True, linked=True)
    except WrongContent:
        path.unlink()
        target.unlink()
        raise


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or on a file system without such names make a copy."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _make_older(path: Path) -> None:
    """Set a new file's time back, so that any later change gives it another one and its check can be remembered at
    once.
    """
    before = time.time() - 2 * RACY_SECONDS
    os.utime(path, (time.time(), before))
