"""The artifact store: a local folder or any fsspec URL, written so that a kill at any instant leaves no half file.

Keys are paths relative to the store's root, with forward slashes. Files are written in a staging folder, on the store's
own file system if it is local, and moved or uploaded when they are whole.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

from trainer.common.addresses import check_address
from trainer.common.errors import ConfigError, StorageError, WrongContent, brief, reason_of
from trainer.common.transient import FULL, is_transient, number_of
from trainer.store import roots
from trainer.store.checked_files import forget_unused
from trainer.store.local import LocalFiles, Stored, linked_folders
from trainer.store.private_folders import STAGING, PrivateFolder, sweep

if TYPE_CHECKING:
    from trainer.store.remote import RemoteObjects

PROBE = b"probe"
SENT_AT_ONCE = 2**20
"""Bytes that are sent to a remote store as they are, of which a library may make copies; more go by a file of this
machine."""
REACHABLE = "check that the store is reachable and whole"
LOCAL_HINTS = {
    errno.EROFS: "choose a store that can be written",
    errno.EACCES: "give this user the right to write there, or choose another store",
    errno.ENOTDIR: "choose a folder, not a file, for the store",
}


class Store:
    """Reads and publishes files under one root. `local` is its folder, None for a remote one.

    `cache_bytes` is what this machine may hold of a remote one at a time; None if there is nothing to hold.

    Raises `StorageError` with the operation and the path when the file system refuses.
    """

    def __init__(self, url: str) -> None:
        try:
            check_address(url)
        except ValueError as error:
            raise ConfigError(f"the store {error}") from error
        _, named, place = url.strip().rpartition("://")
        if not place or (named and not place.strip("/")):
            raise ConfigError(f"the store {url!r} names no place; give a folder, or a URL such as s3://bucket/folder")
        self.url = url.rstrip("/") if len(url) > 1 else url
        self.local: Path | None = None
        self.cache_bytes: int | None
        self._refusals: tuple[type[Exception], ...] = (OSError,)
        if split_protocol(self.url)[0] in (None, "file", "local"):
            self.local = Path(LocalFileSystem._strip_protocol(self.url))
            self.files: LocalFiles | RemoteObjects = LocalFiles(self.local)
            self._base, self.cache_bytes = self.local / STAGING, None
        else:
            from trainer.store import remote  # needs what local stores do not

            try:
                objects = remote.RemoteObjects(self.url)
            except (ImportError, ValueError, OSError) as error:  # of a place that fsspec does not know, or reach
                raise StorageError(
                    f"the store {self.url!r} cannot be opened: {brief(error)}", is_transient(error)
                ) from error
            self.files, self._refusals = objects, remote.REFUSALS
            self._base, self.cache_bytes = objects.cache.work, objects.cache.limit

    def path(self, key: str) -> str:
        """The full path or URL of a key, for messages and for people."""
        return str(self.local / key) if self.local else f"{self.url}/{key}"

    def exists(self, key: str) -> bool:
        with self._explained("look for", key):
            return self.files.exists(key)

    def names(self, key: str) -> list[str]:
        """The sorted names inside a folder; empty if there is none."""
        with self._explained("list", key):
            return self.files.names(key)

    def sizes(self, key: str) -> dict[str, int]:
        """The bytes of the files in a folder, by name, as a listing tells them: one may be missing in it, or old."""
        with self._explained("list", key):
            return self.files.sizes(key)

    def size(self, key: str) -> int:
        """A file's bytes. Raises `FileNotFoundError`."""
        with self._explained("read", key):
            return self.files.size(key)

    def read_bytes(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """A file's bytes, or those of a stretch of it."""
        with self._explained("read", key):
            return self.files.read(key, start, end)

    def find_bytes(self, key: str) -> bytes | None:
        """A file's bytes, or None if there is no such file."""
        try:
            return self.read_bytes(key)
        except FileNotFoundError:
            return None

    def read_json(self, key: str) -> Any:
        """A JSON file's value, or None if there is no such file."""
        raw = self.find_bytes(key)
        try:
            return None if raw is None else json.loads(raw)
        except ValueError as error:
            raise StorageError(
                f"{self.path(key)} is not valid JSON ({error}): it was not written by headrace"
            ) from error

    def write_bytes(self, key: str, data: bytes | memoryview) -> None:
        if not isinstance(self.files, LocalFiles) and len(data) <= SENT_AT_ONCE:
            with self._explained("write", key, len(data)):
                return self.files.write(bytes(data), key)
        with self.writing(key, len(data)) as path:
            path.write_bytes(data)

    def write_json(self, key: str, value: Any, indent: int | None = 2) -> None:
        self.write_bytes(key, json_bytes(value, indent))

    @contextmanager
    def writing(self, key: str, needed: int | None = None) -> Iterator[Path]:
        """Yield a local path to write; its file takes the key's place, all at once, when the block ends well.

        `needed` is its size in bytes, for the message about a full disk.
        """
        with self.staging(key=key) as folder:
            path = folder / key.rsplit("/", 1)[-1]
            with self._explained("write", key, needed):
                yield path
            self.put(path, key)

    def put(self, path: Path, key: str) -> None:
        """Publish a finished local file under a key. A file inside the staging folder is moved, not copied."""
        with self._explained("write", key):
            self.files.put(path, key)

    def put_folder(self, folder: Path, key: str, last: str, same: bool = False) -> None:
        """Publish a staged folder under a key; the file named `last` appears after all the others, or with them.

        An older one of this name is removed first, unless it is said to be of the `same` files.
        """
        with self._explained("write", key):
            self.files.put_folder(folder, key, last, same)

    def begin(self, key: str, data: bytes) -> Path:
        """A local file with these bytes that is to grow: of a local store the key's own, of a remote one this
        process's, which `put` sends.
        """
        with self._staged(key, data) as path:
            return self.files.begin(path, key)

    def copy(self, source: str, key: str) -> None:
        """Publish a second copy of a file."""
        with self._explained("write", key):
            self.files.copy(source, key)

    def create(self, key: str, data: bytes) -> bool:
        """Write a file that must not exist yet; returns whether this call made it. Of several at once, one does."""
        with self._as_taken(key, data) as taken:
            return self.files.create(taken, key)

    def swap(self, key: str, expected: bytes, data: bytes) -> bool:
        """Replace a file that holds the expected bytes; returns whether it did. Of several at once, one does."""
        with self._as_taken(key, data) as taken:
            return self.files.swap(taken, key, expected)

    def rename(self, key: str, new: str) -> None:
        """Give a file or folder another name; nothing happens if it is gone."""
        with self._explained("rename", key), suppress(FileNotFoundError):
            self.files.rename(key, new)

    def delete(self, key: str, first: str | None = None) -> None:
        """Remove a file or a folder, if it is there; of a folder, the file named `first` before the rest."""
        with self._explained("delete", key):
            self.files.delete(key, first)

    def fetch(self, key: str, sha256: str | None = None, check: bool = False, beyond: bool = False) -> Path:
        """A local path that holds the key's bytes: the file itself, or a copy of the remote object.

        With a digest, the content is compared with it, and `WrongContent` is raised if it is another one; a remote
        object's copy is kept and shared. What was compared on this machine and has not changed since is not read again,
        unless it is to be looked at anew (`check`). A copy that may go `beyond` the cache's limit does not count while
        it is in use.
        """
        with self._explained("read", key), self._named(key):
            return self.files.fetch(key, sha256, check, beyond)

    def locate(self, key: str, sha256: str) -> Path:
        """The same for who compares what it reads by itself: a file of a local store is not looked at."""
        with self._explained("read", key), self._named(key):
            return self.files.locate(key, sha256)

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """For reads of what `fetch` or `locate` gave: turn the file system's errors into a `StorageError`."""
        with self._explained("read", key):
            yield

    def fetch_folder(self, key: str, digests: Mapping[str, str]) -> Path:
        """A local folder that holds these files under a key, by name, each compared with its digest as `fetch` does.

        Copies of remote ones may go beyond the cache's limit: a model or a checkpoint must be had whatever its size.
        """
        with self._explained("read", key), self._named(key):
            return self.files.fetch_folder(key, digests)

    def release(self, key: str) -> None:
        """Let go of the local path that `fetch` or `fetch_folder` gave; whoever has it open or mapped keeps the
        bytes.
        """
        with self._explained("release", key):
            self.files.release(key)

    def walk(self, key: str = "") -> Iterator[Stored]:
        """Every file of the store, or of a folder in it."""
        with self._explained("list", key):
            yield from self.files.walk(key)

    def unfinished_uploads(self) -> list[Stored]:
        """Uploads in parts that were neither completed nor given up."""
        with self._explained("list the unfinished uploads of", ""):
            return self.files.unfinished_uploads()

    def abort_upload(self, key: str, upload: str) -> None:
        """Give up an upload in parts, so that the bucket forgets them."""
        with self._explained("abort the upload of", key):
            self.files.abort_upload(key, upload)

    @contextmanager
    def staging(self, needed: int | None = None, key: str = STAGING) -> Iterator[Path]:
        """A private folder on the file system where `key` belongs (or a temporary one), removed at the end of the
        block.

        `needed` is about how many bytes are written there, to become `key`: for the message about a full disk.
        """
        with self._explained("write", STAGING):
            base = self._base_for(key)
        with self._explained("write", STAGING if self.local is None else base.relative_to(self.local).as_posix()):
            self.files.make_folder(base)
            folder = PrivateFolder(base)
        try:
            with self.explained_when_full(key, folder.path, needed):
                yield folder.path
        finally:
            folder.remove()

    def sweep(self) -> None:
        """Remove what processes that no longer live left unfinished."""
        for base in [self._base, *(folder / STAGING for folder in linked_folders(self.local))]:
            sweep(base)
        self.files.trim()
        forget_unused()

    def age(self, key: str) -> float | None:
        """Seconds since a file was written, by the clock that dates the store's files, which need not be this
        machine's; None if there is none.

        By this machine's if the store cannot be written. Raises `StorageError` if a remote one is away, or cannot be
        written because this machine's disk is full.
        """
        with self._explained("look for", key):
            written = self.files.modified(key)
        if written is None:
            return None
        try:
            now = self._now(key)
        except StorageError as error:
            if error.transient and self.local is None:
                raise
            now = datetime.now(UTC)
        return (now - written).total_seconds()

    def _now(self, key: str) -> datetime:
        """The time by the clock that dates what is written where `key` belongs."""
        if self.local is not None:
            with self.staging(key=key) as folder:
                return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        probe = f"{STAGING}/clock-{uuid.uuid4().hex[:12]}"
        self.write_bytes(probe, PROBE)
        try:
            with self._explained("look for", probe):
                now = self.files.modified(probe)
        finally:
            with suppress(StorageError):  # it is left over
                self.delete(probe)
        if now is None:
            raise StorageError(f"{self.path(probe)} was removed as soon as it was written", transient=True)
        return now

    def require_there(self) -> None:
        """Raise `StorageError` if there is no store: for what only looks at one, which else finds everything in
        order.
        """
        self._require_not_away("")
        if not (self.local.is_dir() if self.local is not None else self.names("")):
            raise StorageError(f"there is no store at {self.path('').rstrip('/')}; check the path")

    def check_writable(self) -> None:
        """Raise `StorageError` unless a file can be written and removed: a job begins with it, and a new store too."""
        try:
            if self.local is not None:  # where a private folder is swept after a kill
                roots.forget(self.local)
                with self.staging() as folder, self._explained("write", STAGING, len(PROBE)):
                    (folder / "probe").write_bytes(PROBE)
                return
            self.write_bytes(f"{STAGING}/probe", PROBE)  # of which there is never more than one
        except FileNotFoundError as error:
            reason = reason_of(error)
            raise StorageError(
                f"cannot write {self.url}: {reason}; check that the disk or the bucket exists"
            ) from error
        self.delete(f"{STAGING}/probe")

    def write_probe(self) -> str:
        """Write a file by which others see whether the store is shared; returns its key, for them, and to delete it."""
        key = f"{STAGING}/shared-{uuid.uuid4().hex[:12]}"
        self.write_bytes(key, PROBE)
        return key

    def used_bytes(self, key: str) -> int:
        """Bytes that a folder of a local store holds already; 0 for a remote one."""
        return 0 if self.local is None else sum(file.size for file in self.walk(key))

    def free_bytes(self, folder: str = "") -> int | None:
        """Bytes that the disk of a local store, or of a folder right in it, still has; None for a remote one."""
        return None if self.local is None else shutil.disk_usage(self._existing(folder)).free

    def fetched_room(self) -> int | None:
        """Bytes that this machine has for what is fetched whole of a remote store, whatever its cache's limit; else
        None.
        """
        return self.files.room_beyond()

    def disk_of(self, folder: str = "") -> int | None:
        """What tells the disk of a local store, or of a folder right in it, from others; None for a remote one."""
        return None if self.local is None else self._existing(folder).stat().st_dev

    def _existing(self, folder: str) -> Path:
        """The place of a folder right in a local store, or what is there of the way to it."""
        assert self.local is not None
        place = self.local / folder
        return next(path for path in [place, *place.parents] if path.exists())

    def _base_for(self, key: str) -> Path:
        """Where private folders are from which a key's file can be moved into its place: on one disk with that."""
        top = key.partition("/")[0]
        if self.local is None or self.local / top not in linked_folders(self.local):
            return self._base
        return self.local / top / STAGING

    @contextmanager
    def explained_when_full(self, key: str, folder: Path | None = None, needed: int | None = None) -> Iterator[None]:
        """For work whose libraries write by themselves: turn their errors about a full disk into a `StorageError`.

        So are those of a local store that is away.
        """
        try:
            yield
        except Exception as error:
            number = number_of(error)
            if number is not None:
                self._require_not_away(key, error)
            if number not in FULL:
                raise
            raise self._full(key, number, folder, needed) from error

    @contextmanager
    def _explained(self, operation: str, key: str, needed: int | None = None) -> Iterator[None]:
        try:
            yield
            self._require_not_away(key)  # else what is not there would be taken for what was never made
        except self._refusals as error:
            self._require_not_away(key, error)
            if isinstance(error, FileNotFoundError) and (self.local or operation == "read"):
                raise
            number = number_of(error)
            if number in FULL:
                raise self._full(key, number, needed=needed) from error
            reason = getattr(error, "strerror", None) or error
            hint = self._hint(error) if self.local is None else LOCAL_HINTS.get(number or 0, REACHABLE)
            raise StorageError(f"cannot {operation} {self.path(key)}: {reason}; {hint}", is_transient(error)) from error

    def _require_not_away(self, key: str, error: Exception | None = None) -> None:
        """Raise `StorageError` if a local store, or the folder right in it that a link leads to, was there, and is not
        now.
        """
        if not isinstance(self.files, LocalFiles):
            return
        folders = self.files.lasting(key)
        if away := roots.find_away(*folders):
            said = f"the store {self.url} is away: {away} was there before, and is not now"
            raise StorageError(
                f"{said}; put it back, or mount its disk, and the work goes on", transient=True
            ) from error
        roots.see(*folders)

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Say of what is fetched where it is."""
        try:
            yield
        except WrongContent as error:
            raise WrongContent(f"{self.path(key)} {error}") from error

    @staticmethod
    def _hint(error: Exception) -> str:
        """What to do when a remote store refuses."""
        # Of a request without a body S3 says no more than `Bad Request` if a token has expired.
        if isinstance(error, PermissionError) or "redentials" in type(error).__name__ or "Bad Request" in str(error):
            return (
                "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role) and that "
                "they may read, write, list and delete there"
            )
        return "make the bucket, or name another store" if isinstance(error, FileNotFoundError) else REACHABLE

    @contextmanager
    def _staged(self, key: str, data: bytes) -> Iterator[Path]:
        """A finished file with these bytes, to be published in the block."""
        with self.staging(key=key) as folder, self._explained("write", key, len(data)):
            path = folder / "new"
            path.write_bytes(data)
            yield path

    @contextmanager
    def _as_taken(self, key: str, data: bytes) -> Iterator[Any]:
        """Data as the files take what is conditional: local ones a file to be moved into place, remote ones bytes."""
        if self.local is not None:
            with self._staged(key, data) as path:
                yield path
        else:
            with self._explained("write", key, len(data)):
                yield data

    def _full(self, key: str, number: int, folder: Path | None = None, needed: int | None = None) -> StorageError:
        """What to say of a full disk: how much was needed, if that is known, and the space there was before `folder`
        grew.
        """
        written = sum(path.stat().st_size for path in folder.iterdir()) if folder else 0
        top = key.partition("/")[0]
        place = self._existing(top) if self.local else next(path for path in self._base.parents if path.exists())
        room = shutil.disk_usage(place).free + written
        # What it takes is more than the bytes that are known of it, and not all that is free may be this user's.
        lack = (
            f"about {needed:,} bytes are needed, {room:,} are free at {place}"
            if needed and needed > room
            else f"it takes more than what was free for it at {place}, {room:,} bytes at most"
        )
        return StorageError(
            f"cannot write {self.path(key)}: {os.strerror(number)}: {lack}; "
            "free some space there, then run it again: finished work is kept",
            transient=True,
        )


def json_bytes(value: Any, indent: int | None = 2) -> bytes:
    """A JSON file's bytes, the same for equal values."""
    return (json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False) + "\n").encode()
