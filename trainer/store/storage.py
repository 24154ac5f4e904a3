"""The artifact store: a local folder or any fsspec URL. A kill at any instant leaves no incomplete files.

Keys are paths relative to the store's root, with forward slashes. Files are written to a staging folder, on the store's
own file system if it is local, and moved or uploaded when they are complete.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

from trainer.common.addresses import check_address, check_place
from trainer.common.errors import ConfigError, StorageError, WrongContent, brief, reason_of
from trainer.common.transient import FULL, is_transient, number_of
from trainer.store import roots
from trainer.store.checked_files import forget_unused
from trainer.store.local import LocalFiles, Stored, linked_folders
from trainer.store.private_folders import STAGING, PrivateFolder, sweep
from trainer.store.remedies import describe_cache_error, is_of_cache, is_of_remote, remedy_of_local, remedy_of_remote

if TYPE_CHECKING:
    from trainer.store.remote import RemoteObjects

SENT_AT_ONCE = 2**20
"""Maximum bytes sent to a remote store from memory, which libraries may copy; larger data is sent from a local file."""
LOCAL = (None, "file", "local")
"""Protocols of a folder of this machine."""


class Store:
    """Reads and publishes files below one root. `local` is the root's folder, None for a remote store.

    `cache_bytes` is the limit of this machine's cache for a remote store; None for a local store.

    Raises `StorageError` with the operation and the path if the file system reports an error.
    """

    def __init__(self, url: str) -> None:
        try:
            check_address(url)
            check_place(url)
        except ValueError as error:
            raise ConfigError(f"the store {error}") from error
        _, named, place = url.strip().rpartition("://")
        if not place or (named and not place.strip("/")):
            raise ConfigError(f"the store {url!r} has no path; set a folder, or a URL such as s3://bucket/folder")
        if split_protocol(url)[0] not in LOCAL and "//" in place.rstrip("/"):  # another store than with one slash
            raise ConfigError(f"the store {url!r} names a folder without a name; expected one slash between names")
        self.url = url.rstrip("/") if len(url) > 1 else url
        self.local: Path | None = None
        self.cache_bytes: int | None
        if split_protocol(self.url)[0] in LOCAL:
            self.local = Path(LocalFileSystem._strip_protocol(self.url))
            self.files: LocalFiles | RemoteObjects = LocalFiles(self.local)
            self._base, self.cache_bytes = self.local / STAGING, None
        else:
            from trainer.store import remote  # imports libraries that local stores do not need

            try:
                objects = remote.RemoteObjects(self.url)
            except (ImportError, ValueError, OSError) as error:  # unknown protocol or unreachable server
                raise StorageError(
                    f"the store {self.url!r} cannot be opened: {brief(error)}", is_transient(error)
                ) from error
            self.files = objects
            self._base, self.cache_bytes = objects.cache.work, objects.cache.limit

    def path(self, key: str) -> str:
        """The full path or URL of a key, for messages."""
        return str(self.local / key) if self.local else f"{self.url}/{key}"

    def exists(self, key: str) -> bool:
        with self.explained("look for", key):
            return self.files.exists(key)

    def names(self, key: str) -> list[str]:
        """The sorted names inside a folder; empty if it does not exist."""
        with self.explained("list", key):
            return self.files.names(key)

    def sizes(self, key: str) -> dict[str, int]:
        """Sizes of the files in a folder, by name, from a listing, which may be incomplete or outdated."""
        with self.explained("list", key):
            return self.files.sizes(key)

    def size(self, key: str) -> int:
        """Return a file's size in bytes; raise `FileNotFoundError` if it does not exist."""
        with self.explained("read", key):
            return self.files.size(key)

    def read_bytes(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a file's bytes, optionally only those from `start` to `end`."""
        with self.explained("read", key):
            return self.files.read(key, start, end)

    def find_bytes(self, key: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist."""
        try:
            return self.read_bytes(key)
        except FileNotFoundError:
            return None

    def read_json(self, key: str) -> Any:
        """Return a JSON file's value, or None if the file does not exist."""
        raw = self.find_bytes(key)
        try:
            return None if raw is None else json.loads(raw)
        except ValueError as error:
            raise StorageError(
                f"{self.path(key)} is not valid JSON ({error}): it was not written by headrace"
            ) from error

    def write_bytes(self, key: str, data: bytes | memoryview) -> None:
        if not isinstance(self.files, LocalFiles) and len(data) <= SENT_AT_ONCE:
            with self.explained("write", key, len(data)):
                return self.files.write(bytes(data), key)
        with self.writing(key, len(data)) as path:
            path.write_bytes(data)

    def write_json(self, key: str, value: Any, indent: int | None = 2) -> None:
        self.write_bytes(key, json_bytes(value, indent))

    @contextmanager
    def writing(self, key: str, needed: int | None = None) -> Iterator[Path]:
        """Yield a local path to write; when the block succeeds, the file atomically replaces the key's.

        `needed` is its size in bytes, for the message about a full disk.
        """
        with self.staging(key=key) as folder:
            path = folder / key.rsplit("/", 1)[-1]
            with self.explained("write", key, needed):
                yield path
            self.put(path, key)

    def put(self, path: Path, key: str) -> None:
        """Publish a finished local file under a key. A file inside the staging folder is moved, not copied."""
        with self.explained("write", key):
            self.files.put(path, key)

    def put_folder(self, folder: Path, key: str, last: str, same: bool = False) -> None:
        """Publish a staged folder under a key; the file named `last` appears after the others, or together with them.

        An older file of this name is removed first, except with `same`: it then describes the same files.
        """
        with self.explained("write", key):
            self.files.put_folder(folder, key, last, same)

    def begin(self, key: str, data: bytes) -> Path:
        """Create a local file with these bytes to append to: the key's own in a local store; for a remote store a local
        one, which `put` sends.
        """
        with self._staged(key, data) as path:
            return self.files.begin(path, key)

    def copy(self, source: str, key: str) -> None:
        """Copy a file within the store."""
        with self.explained("write", key):
            self.files.copy(source, key)

    def create(self, key: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether this call created it. Only one of concurrent calls does."""
        with self._as_taken(key, data) as taken:
            return self.files.create(taken, key)

    def swap(self, key: str, expected: bytes, data: bytes) -> bool:
        """Replace a file if it contains the expected bytes; return whether it did. Only one of parallel calls does."""
        with self._as_taken(key, data) as taken:
            return self.files.swap(taken, key, expected)

    def rename(self, key: str, new: str) -> None:
        """Rename a file or folder; do nothing if it does not exist."""
        with self.explained("rename", key), suppress(FileNotFoundError):
            self.files.rename(key, new)

    def delete(self, key: str, first: str | None = None) -> None:
        """Remove a file or folder if it exists; in a folder, remove the file named `first` before the others."""
        with self.explained("delete", key):
            self.files.delete(key, first)

    def fetch(self, key: str, sha256: str | None = None, recheck: bool = False, beyond: bool = False) -> Path:
        """Return a local path with the key's bytes: the file itself, or a copy of the remote object.

        With a digest, the content is verified, and `WrongContent` is raised if it differs; the copy of a remote object
        is cached and shared. A file that was verified on this machine and is unchanged since is not read again, unless
        `recheck` is set. With `beyond`, the copy does not count towards the cache's limit while it is in use.
        """
        with self.explained("read", key), self._named(key):
            return self.files.fetch(key, sha256, recheck, beyond)

    def locate(self, key: str, sha256: str) -> Path:
        """Like `fetch`, for callers that verify what they read: a file of a local store is not verified here."""
        with self.explained("read", key), self._named(key):
            return self.files.locate(key, sha256)

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Convert file system errors while reading a path from `fetch` or `locate` into `StorageError`."""
        with self.explained("read", key):
            yield

    def fetch_folder(self, key: str, digests: Mapping[str, str]) -> Path:
        """Return a local folder with these files of a key, each verified as by `fetch`.

        Copies of remote files may exceed the cache's limit: models and checkpoints are needed whatever their size.
        """
        with self.explained("read", key), self._named(key):
            return self.files.fetch_folder(key, digests)

    def release(self, key: str) -> None:
        """Release a local path from `fetch` or `fetch_folder`; readers that have it open keep its bytes."""
        with self.explained("release", key):
            self.files.release(key)

    def walk(self, key: str = "") -> Iterator[Stored]:
        """Yield every file of the store, or of a folder in it."""
        with self.explained("list", key):
            yield from self.files.walk(key)

    def unfinished_uploads(self) -> list[Stored]:
        """Multipart uploads that were neither completed nor aborted."""
        with self.explained("list the unfinished uploads of", ""):
            return self.files.unfinished_uploads()

    def abort_upload(self, key: str, upload: str) -> None:
        """Abort a multipart upload, so that the bucket deletes its parts."""
        with self.explained("abort the upload of", key):
            self.files.abort_upload(key, upload)

    @contextmanager
    def staging(self, needed: int | None = None, key: str = STAGING) -> Iterator[Path]:
        """Yield a private folder on the file system of `key` (or a temporary one); it is removed when the block ends.

        `needed` is the approximate number of bytes to be written, for the message about a full disk.
        """
        with self.explained("write", STAGING):
            base = self._base_for(key)
        with self.explained("write", STAGING if self.local is None else base.relative_to(self.local).as_posix()):
            self.files.make_folder(base)
            folder = PrivateFolder(base)
        try:
            with self.explained_when_full(key, folder.path, needed):
                yield folder.path
        finally:
            folder.remove()

    def sweep(self) -> None:
        """Remove unfinished files of processes that have ended."""
        for base in [self._base, *(folder / STAGING for folder in linked_folders(self.local))]:
            sweep(base)
        self.files.trim()
        forget_unused()

    def require_there(self) -> None:
        """Raise `StorageError` if the store does not exist; for commands that only read it."""
        self._require_not_away("")
        if not (self.local.is_dir() if self.local is not None else self.names("")):
            raise StorageError(f"there is no store at {self.path('').rstrip('/')}; check the path")

    def used_bytes(self, key: str) -> int:
        """Bytes used by a folder of a local store; 0 for a remote one."""
        return 0 if self.local is None else sum(file.size for file in self.walk(key))

    def free_bytes(self, folder: str = "") -> int | None:
        """Free bytes on the disk of a local store, or of a direct subfolder; None for a remote store."""
        return None if self.local is None else shutil.disk_usage(self._existing(folder)).free

    def fetched_room(self) -> int | None:
        """Bytes available on this machine for files fetched beyond the cache's limit; None for a local store."""
        return self.files.room_beyond()

    def disk_of(self, folder: str = "") -> int | None:
        """Device id of the disk of a local store, or of a direct subfolder; None for a remote store."""
        return None if self.local is None else self._existing(folder).stat().st_dev

    def _existing(self, folder: str) -> Path:
        """Path of a direct subfolder of a local store, or its nearest existing parent."""
        assert self.local is not None
        place = self.local / folder
        return next(path for path in [place, *place.parents] if path.exists())

    def _base_for(self, key: str) -> Path:
        """The staging folder on the same disk as a key, so that files can be renamed into place."""
        top = key.partition("/")[0]
        if self.local is None or self.local / top not in linked_folders(self.local):
            return self._base
        return self.local / top / STAGING

    @contextmanager
    def explained_when_full(self, key: str, folder: Path | None = None, needed: int | None = None) -> Iterator[None]:
        """Convert errors of libraries that write files themselves into `StorageError` if the disk is full or the local
        store is unmounted.
        """
        try:
            yield
        except Exception as error:
            number = number_of(error)
            if number is not None:
                self._require_not_away(key, error)
            if number not in FULL:
                raise
            raise self._full("write", key, number, folder, needed) from error

    @contextmanager
    def explained(self, operation: str, key: str, needed: int | None = None) -> Iterator[None]:
        """Convert errors of the file system or the server into `StorageError`, except that a file is missing."""
        try:
            yield
            self._require_not_away(key)  # otherwise a missing file would be treated as never created
        except Exception as error:
            if not isinstance(error, OSError) and (self.local is not None or not is_of_remote(error)):
                raise
            self._require_not_away(key, error)
            number = number_of(error)
            if self.local is None and is_of_cache(error):
                raise StorageError(f"cannot {operation} {self.path(key)}: {describe_cache_error(error)}") from error
            if isinstance(error, FileNotFoundError) and (self.local or operation == "read"):
                raise
            if number in FULL:
                raise self._full(operation, key, number, needed=needed) from error
            remedy = remedy_of_remote(error) if self.local is None else remedy_of_local(number)
            raise StorageError(
                f"cannot {operation} {self.path(key)}: {reason_of(error)}; {remedy}", is_transient(error)
            ) from error

    def _require_not_away(self, key: str, error: Exception | None = None) -> None:
        """Raise `StorageError` if a local store, or a linked subfolder's target, existed before and is missing now."""
        if not isinstance(self.files, LocalFiles):
            return
        folders = self.files.lasting(key)
        if away := roots.find_away(*folders):
            raise StorageError(
                f"the store {self.url} is unavailable: {away} existed before and is missing now; restore it or mount "
                "its disk, and the work continues",
                transient=True,
            ) from error
        roots.see(*folders)

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Add the path to an error about a fetched file."""
        try:
            yield
        except WrongContent as error:
            raise WrongContent(f"{self.path(key)} {error}") from error

    @contextmanager
    def _staged(self, key: str, data: bytes) -> Iterator[Path]:
        """Yield a finished file with these bytes, to be published in the block."""
        with self.staging(key=key) as folder, self.explained("write", key, len(data)):
            path = folder / "new"
            path.write_bytes(data)
            yield path

    @contextmanager
    def _as_taken(self, key: str, data: bytes) -> Iterator[Any]:
        """Yield data as `create` and `swap` expect it: a local file for local stores, bytes for remote ones."""
        if self.local is not None:
            with self._staged(key, data) as path:
                yield path
        else:
            with self.explained("write", key, len(data)):
                yield data

    def _full(
        self, operation: str, key: str, number: int, folder: Path | None = None, needed: int | None = None
    ) -> StorageError:
        """The error for a full disk: the bytes needed, if known, and the free space before `folder` was written."""
        written = sum(path.stat().st_size for path in folder.iterdir()) if folder else 0
        top = key.partition("/")[0]
        place = self._existing(top) if self.local else next(path for path in self._base.parents if path.exists())
        room = shutil.disk_usage(place).free + written
        # The disk may be full although `needed` fits: files need more space than their bytes, and some is reserved.
        lack = (
            f"about {needed:,} bytes are needed, {room:,} are free at {place}"
            if needed and needed > room
            else f"it takes more than the {room:,} bytes that were free at {place}"
        )
        return StorageError(
            f"cannot {operation} {self.path(key)}: {os.strerror(number)}: {lack}; "
            "free some space there and run it again: finished work is kept",
            transient=True,
        )


def json_bytes(value: Any, indent: int | None = 2) -> bytes:
    """The bytes of a JSON file; equal values give equal bytes."""
    return (json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False) + "\n").encode()
