"""Verified copies of remote files in a cache folder of limited size, shared by the processes of a machine.

    HEADRACE_CACHE         the folder; by default headrace in the user's cache folder
    HEADRACE_CACHE_BYTES   its maximum size; by default 50 GB

The name of a copy contains its digest. A copy is verified after download, and again if it has changed since. A process
that uses a copy gets a hard link to it in `work`; copies without links are evicted, the least recently used first. One
lock guards linking and eviction: otherwise a copy could be evicted while a process links it, and would use disk space
without being counted.

Models and checkpoints are fetched whole and must fit whatever the limit: their copies (`.beyond`) do not count while
they are in use, and only the disk limits them.
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
"""Suffix of a copy that does not count while it is in use."""

NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}(?P<beyond>\.beyond)?(\.[0-9a-f]{12}\.(?P<size>\d+))?")
"""Name of a copy, or of a running download with its final size; other files in the folder are ignored."""


class Copy(NamedTuple):
    """A file of the cache: time of last use, size when complete, and number of hard links."""

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
        """Whether its size counts towards the limit."""
        return not (self.beyond and self.in_use)


class BlobCache:
    """Copies of files, keyed by SHA-256 and the store's version of the file."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.limit = folder, limit
        self.work = folder / "work"
        """Parent of the private folders of processes."""

    @classmethod
    def of_this_machine(cls) -> "BlobCache":
        """The cache configured by the environment variables."""
        size = os.environ.get(SIZE) or str(DEFAULT_BYTES)
        if not size.isdecimal():
            raise ConfigError(f"{SIZE} is {size!r}, expected a number of bytes")
        return cls(machine_cache(), int(size))

    def give(
        self,
        target: Path,
        sha256: str,
        version: str,
        size: int,
        download: Callable[[Path], None],
        recheck: bool = False,
        beyond: bool = False,
    ) -> None:
        """Make `target` a hard link to the copy, after downloading it if it is missing; concurrent calls download once.

        A copy whose content has changed is replaced; `recheck` reads the content even if the file seems unchanged. With
        `beyond`, the copy does not count towards the limit while it is in use. Raises `WrongContent` if the downloaded
        file has another digest, `StorageError` if copies in use leave no space.
        """
        name = f"{sha256}-{hashlib.sha256(version.encode()).hexdigest()[:16]}"
        make_folders(self._folder)
        with self._alone(name):
            if any(self._has(self._folder / f"{name}{end}", target, sha256, recheck) for end in ("", BEYOND)):
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
        """Evict unused copies until the cache is within its limit, for example after a model was released."""
        if not self._folder.is_dir():
            return
        with self._alone("room"):
            found = self._found()
            unused = sum(copy.size for copy in found if not copy.in_use)
            self._evict(found, min(unused, sum(copy.size for copy in found if copy.counts) - self.limit))

    def room_beyond(self) -> int:
        """Bytes available on the disk for copies beyond the limit, if all unused copies are evicted."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unused = sum(copy.size for copy in self._copies() if not copy.in_use)
        return shutil.disk_usage(self._folder).free + unused

    def _has(self, path: Path, target: Path, sha256: str, recheck: bool) -> bool:
        """Link `target` to an existing copy; return whether it exists and is intact."""
        with suppress(FileNotFoundError):
            path.stat()  # no lock is needed if the copy does not exist
            with self._alone("room"):
                _link(path, target)
            if not _is_discarded(path, sha256, recheck):
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
                return True
        target.unlink(missing_ok=True)
        return False

    def _make_room(self, name: str, size: int, beyond: bool) -> Path:
        """Evict the least recently used copies until `size` bytes fit; return a reserved path to download to."""
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
        """All copies, the least recently used first; removes interrupted downloads."""
        found = []
        for copy in sorted(self._copies()):
            if copy.arrives and not self._is_downloaded(copy.path.name, mine):
                copy.path.unlink(missing_ok=True)
            else:
                found.append(copy)
        return found

    @staticmethod
    def _evict(found: list[Copy], lacking: int) -> bool:
        """Evict unused copies until `lacking` bytes are freed; if that is impossible, evict none and return False."""
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
            f"the cache {self._folder} has no space for {size:,} bytes: {taken:,} of its {self.limit:,} are in use; "
            f"raise {SIZE}"
        )

    def _no_room(self, size: int, free: int) -> str:
        return (
            f"the disk of the cache {self._folder} has {free:,} bytes free, {size:,} are needed; free some space, or "
            f"set {FOLDER} to a folder on a larger disk"
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
        """Whether another process is downloading the file: it holds the lock, unless this process does for `mine`."""
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
        """Hold a lock against other processes and threads; the lock is released if the process dies."""
        with opened_lock(self._lock(name)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _lock(self, name: str) -> str:
        return f"{self._folder}/{name if name == 'room' else name[:2]}.lock"


def _is_discarded(path: Path, sha256: str, recheck: bool) -> bool:
    """Remove a copy that has changed since its download; return whether it was removed."""
    try:
        require_content(path, sha256, recheck, linked=True)
    except WrongContent as error:
        log.warning("%s %s: the copy on this machine's disk was changed; fetching it again", path, error)
        path.unlink()
        return True
    return False


def _check_arrived(path: Path, target: Path, sha256: str) -> None:
    """Verify a copy after its download; if it is wrong, remove it and raise `WrongContent`."""
    try:
        require_content(path, sha256, recheck=True, linked=True)
    except WrongContent:
        path.unlink()
        target.unlink()
        raise


def _link(source: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system has no hard links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _make_older(path: Path) -> None:
    """Set a new file's modification time back, so that any later change differs and its check can be recorded now."""
    before = time.time() - 2 * RACY_SECONDS
    os.utime(path, (time.time(), before))
