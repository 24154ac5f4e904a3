"""Verified copies of remote files, shared by the processes of a machine, in a folder that stays within a size.

    HEADRACE_CACHE         the folder; by default headrace in the user's cache folder
    HEADRACE_CACHE_BYTES   its size at most; by default 50 GB

A copy is named by what it must contain, checked when it arrives, and used without another look; the least recently used
ones make room for new ones. A file that is open or mapped stays readable when its copy is removed.
"""

import fcntl
import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.errors import ConfigError, StorageError, WrongContent
from trainer.local_files import sync_file, sync_folder

FOLDER, SIZE = "HEADRACE_CACHE", "HEADRACE_CACHE_BYTES"
DEFAULT_BYTES = 50 * 10**9
LEFT_OVER_SECONDS = 24 * 3600
"""Downloads of killed processes are removed when they are this old."""


NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}(\.[0-9a-f]{12})?")
"""A copy, or one that is being downloaded; nothing else in the folder is touched."""


class BlobCache:
    """Files by their SHA-256 and the version that the store gave them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit

    @classmethod
    def of_this_machine(cls) -> "BlobCache":
        """The cache that the environment describes."""
        folder, size = os.environ.get(FOLDER), os.environ.get(SIZE) or str(DEFAULT_BYTES)
        if not size.isdecimal():
            raise ConfigError(f"{SIZE} is {size!r}; it must be a number of bytes")
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return cls(Path(folder) if folder else Path(home, "headrace").expanduser(), int(size))

    def get(self, sha256: str, version: str, size: int, download: Callable[[Path], None]) -> Path:
        """The path of the copy, downloaded if need be; of several processes that want it at once, one downloads.

        Raises `WrongContent` if what arrives has another digest, `StorageError` if it is larger than the whole cache.
        """
        if size > self._limit:
            raise StorageError(f"a file of {size:,} bytes does not fit into the cache of {self._limit:,}; raise {SIZE}")
        path = self._folder / f"{sha256}-{hashlib.sha256(version.encode()).hexdigest()[:16]}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone(path.name):
            with suppress(FileNotFoundError):
                if path.stat().st_size == size:
                    os.utime(path)
                    return path
            self._make_room(size)
            partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
            try:
                download(partial)
                _verify(partial, sha256)
                sync_file(partial)
                os.replace(partial, path)
                sync_folder(self._folder)
            finally:
                partial.unlink(missing_ok=True)
            return path

    def _make_room(self, size: int) -> None:
        """Remove what was used least recently until a file of this size fits."""
        with self._alone("room"):
            found = []
            for path in self._folder.iterdir():
                with suppress(FileNotFoundError):
                    if NAME.fullmatch(path.name):
                        found.append((path.stat().st_mtime, path.stat().st_size, path))
            total, now = sum(entry[1] for entry in found), time.time()
            for used, bytes_, path in sorted(found):
                partial = "." in path.name
                if partial and now - used < LEFT_OVER_SECONDS:
                    continue  # being downloaded
                if total + size <= self._limit and not partial:
                    break
                path.unlink(missing_ok=True)
                total -= bytes_

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Keep other processes and threads out of the same block; one that dies lets go."""
        with open(self._folder / f"{name[:2]}.lock" if name != "room" else self._folder / "room.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _verify(path: Path, sha256: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise WrongContent(f"does not match its checksum (sha256 {found[:12]}…, its manifest says {sha256[:12]}…)")
