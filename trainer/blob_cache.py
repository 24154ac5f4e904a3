"""Verified copies of remote files, shared by the processes of a machine, in a folder that stays within a size.

    HEADRACE_CACHE         the folder; by default headrace in the user's cache folder
    HEADRACE_CACHE_BYTES   its size at most; by default 50 GB

A copy is named by what it must contain, checked when it arrives, and used without another look unless that is asked for.
Whoever uses one gives it a second name in `work`; of those without, the least recently used make room for new ones.
"""

import fcntl
import hashlib
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from trainer.errors import ConfigError, StorageError, WrongContent
from trainer.local_files import sync_file, sync_folder

log = logging.getLogger(__name__)

FOLDER, SIZE = "HEADRACE_CACHE", "HEADRACE_CACHE_BYTES"
DEFAULT_BYTES = 50 * 10**9

NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}(\.[0-9a-f]{12}\.(?P<size>\d+))?")
"""A copy, or one that is being downloaded, with the size that it will have; nothing else in the folder is touched."""


class Copy(NamedTuple):
    """A file of the cache: when it was used last, how much of the limit it takes, and how many names it has."""

    used: float
    size: int
    names: int
    path: Path
    arrives: bool


class BlobCache:
    """Files by their SHA-256 and the version that the store gave them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.limit = folder, limit
        self.work = folder / "work"
        """For the private folders of processes."""

    @classmethod
    def of_this_machine(cls) -> "BlobCache":
        """The cache that the environment describes."""
        folder, size = os.environ.get(FOLDER), os.environ.get(SIZE) or str(DEFAULT_BYTES)
        if not size.isdecimal():
            raise ConfigError(f"{SIZE} is {size!r}; it must be a number of bytes")
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return cls(Path(folder) if folder else Path(home, "headrace").expanduser(), int(size))

    def get(self, sha256: str, version: str, size: int, download: Callable[[Path], None], check: bool = False) -> Path:
        """The path of the copy, downloaded if need be; of several processes that want it at once, one downloads.

        With `check`, a copy that has changed since it arrived is replaced. Raises `WrongContent` if what arrives has another
        digest, `StorageError` if what is in use leaves no room for it.
        """
        path = self._folder / f"{sha256}-{hashlib.sha256(version.encode()).hexdigest()[:16]}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone(path.name):
            with suppress(FileNotFoundError):
                if path.stat().st_size == size and not (check and _is_discarded(path, sha256)):
                    os.utime(path)
                    return path
            partial = self._make_room(path.name, size)
            try:
                download(partial)
                _verify(partial, sha256)
                sync_file(partial)
                os.replace(partial, path)
                sync_folder(self._folder)
            finally:
                partial.unlink(missing_ok=True)
            return path

    def _make_room(self, name: str, size: int) -> Path:
        """Remove what was used least recently until a file of this size fits, and claim the room: the path to download to."""
        with self._alone("room"):
            found = sorted(self._copies())
            taken = sum(copy.size for copy in found)
            for copy in found:
                unused = copy.names == 1 and taken + size > self.limit
                if not self._is_downloaded(copy.path.name, name) if copy.arrives else unused:
                    copy.path.unlink(missing_ok=True)
                    taken -= copy.size
            if taken + size > self.limit:
                raise StorageError(
                    f"no room for {size:,} bytes in the cache {self._folder}: {taken:,} of its {self.limit:,} are in use; "
                    f"raise {SIZE}"
                )
            partial = self._folder / f"{name}.{uuid.uuid4().hex[:12]}.{size}"
            partial.touch()
            return partial

    def _copies(self) -> Iterator[Copy]:
        for path in self._folder.iterdir():
            name = NAME.fullmatch(path.name)
            if name is None:
                continue
            with suppress(FileNotFoundError):
                state = path.stat()
                yield Copy(state.st_mtime, int(name["size"] or state.st_size), state.st_nlink, path, name["size"] is not None)

    def _is_downloaded(self, name: str, mine: str) -> bool:
        """Whether a process is at it: that one holds the lock, unless it is the lock that this one holds for its own file."""
        if self._lock(name) == self._lock(mine):
            return False
        with open(self._lock(name), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Keep other processes and threads out of the same block; one that dies lets go."""
        with open(self._lock(name), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _lock(self, name: str) -> Path:
        return self._folder / f"{name if name == 'room' else name[:2]}.lock"


def _is_discarded(path: Path, sha256: str) -> bool:
    """Remove a copy that has changed since it arrived; returns whether it had."""
    try:
        _verify(path, sha256)
    except WrongContent as error:
        log.warning("%s %s: it has changed on this machine's disk, and is fetched again", path, error)
        path.unlink()
        return True
    return False


def _verify(path: Path, sha256: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise WrongContent(f"does not match its checksum (sha256 {found[:12]}…, its manifest says {sha256[:12]}…)")
