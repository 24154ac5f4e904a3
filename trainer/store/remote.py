"""A store in a bucket, or on any other file system that fsspec supports; objects appear atomically.

Nothing here relies on renames or on up-to-date listings; files are found through manifests. On S3, uploads are verified
(botocore sends checksums), and `create` and `swap` are conditional writes.
"""

import atexit
import errno
import hashlib
import mimetypes
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import fsspec

from trainer.common.errors import StorageError
from trainer.store.blob_cache import BlobCache
from trainer.store.local import Stored
from trainer.store.names import plain_key
from trainer.store.private_folders import PrivateFolder, make_folders
from trainer.store.remedies import credentials_explained
from trainer.store.remote_listing import files_at

PUBLISHERS = 8
"""Maximum number of processes that may publish the same folder simultaneously."""

TRANSFERS = 8
"""Number of files sent or fetched in parallel; s3fs also sends the parts of a large file in parallel."""

S3_OPTIONS = {
    "use_listings_cache": False,
    "config_kwargs": {"retries": {"mode": "standard", "max_attempts": 4}, "connect_timeout": 10, "read_timeout": 15},
}
DELETED_AT_ONCE = 1000
"""The most objects that S3 deletes by one request."""

NO_TAG = f'"{"0" * 32}"'
"""An entity tag that no object has."""
WILD = re.compile(r"[*?[]")
"""Characters that fsspec treats as a pattern, also when it deletes, which could delete another store's files."""

ROUNDS = 3
"""How often s3fs repeats botocore's attempts and restarts a read, as only s3fs detects interrupted answers. Refused
requests fail after about one minute, unanswered ones after about ten.
"""


class _Explained:
    """A file system of S3 whose `FileNotFoundError` is always about the bucket, never about a file that provides
    credentials.
    """

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        if name == "_fs":  # not set yet, while it is copied
            raise AttributeError(name)
        found = getattr(self._fs, name)
        return credentials_explained()(found) if callable(found) else found


class RemoteObjects:
    """Objects below one URL, by key."""

    def __init__(self, url: str) -> None:
        if found := WILD.search(url):
            raise ValueError(f"it contains {found[0]!r}, which is a wildcard; choose a URL without it")
        self.url = url
        self._s3 = url.startswith(("s3://", "s3a://"))
        self.fs: Any
        self.fs, self.root = fsspec.url_to_fs(url, **(S3_OPTIONS if self._s3 else {}))
        self.fs.invalidate_cache()  # earlier listings may be outdated
        if self._s3:
            self.fs.retries = ROUNDS
            self.fs = _Explained(self.fs)
        self.cache = BlobCache.of_this_machine()
        self._swapped: dict[str, tuple[bytes, str]] = {}
        """Last bytes and entity tag that this process wrote by `swap`, by key; a lease is swapped repeatedly."""

    def make_folder(self, folder: Path) -> None:
        """Create a local folder, for private folders."""
        make_folders(folder)

    def exists(self, key: str) -> bool:
        """Whether the object exists. `fs.exists` of many file systems takes every error for a missing object."""
        try:
            _ = self._head(key) if self._s3 else self.fs.info(self._full(key))
        except FileNotFoundError:
            return False
        return True

    def names(self, key: str) -> list[str]:
        try:
            entries = self.fs.ls(self._full(key), detail=False, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # Some servers list an emptied folder as an entry of itself.
        paths = [str(entry).rstrip("/") for entry in entries]
        return sorted(path.rsplit("/", 1)[-1] for path in paths if path != self._full(key))

    def sizes(self, key: str) -> dict[str, int]:
        try:
            entries = self.fs.ls(self._full(key), detail=True, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {str(each["name"]).rpartition("/")[2]: int(each["size"] or 0) for each in entries}

    def size(self, key: str) -> int:
        return self._facts(key)[0]

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        # Without this, s3fs queries the size first, to read in parts.
        whole = {"max_concurrency": 1} if self._s3 else {}
        return bytes(self.fs.cat_file(self._full(key), start=start or None, end=end, **whole))

    def put(self, path: Path, key: str) -> None:
        self.fs.put_file(str(path), self._full(key))
        self._require_arrived(key, path.stat().st_size)

    def write(self, data: bytes, key: str) -> None:
        kind = mimetypes.guess_type(key)[0] if self._s3 else None  # `put_file` sets it itself
        self.fs.pipe_file(self._full(key), data, **({"ContentType": kind} if kind else {}))
        self._require_arrived(key, len(data))

    def _require_arrived(self, key: str, sent: int) -> None:
        if self._s3 and (size := self._head(key)["ContentLength"]) != sent:
            raise OSError(errno.EREMOTEIO, f"{sent} bytes were sent, {size} arrived")

    def begin(self, path: Path, key: str) -> Path:
        """Move a local file to this process's own copy of the key."""
        own = self._own(key)
        os.replace(path, own)
        return own

    def put_folder(self, folder: Path, key: str, last: str, same: bool = False) -> None:
        """Send the files in parallel, and the file `last` after the others have arrived.

        Older files are overwritten, not removed, because another process may be publishing the same folder. Only an
        older `last` is removed first, unless it describes the `same` files. If a process removes a file that was
        just sent, to publish the same folder or to remove it, the files that are then missing are sent again.
        """
        if not same:
            self._remove_object(f"{key}/{last}")
        names = {path.name for path in folder.iterdir()} - {last}
        missing = names
        for tries_left in reversed(range(PUBLISHERS)):
            try:
                with ThreadPoolExecutor(TRANSFERS) as pool:
                    list(pool.map(lambda name: self.put(folder / name, f"{key}/{name}"), sorted(missing)))
                for name in set(self.names(key)) - {*names, last}:
                    self.delete(f"{key}/{name}")
                return self.put(folder / last, f"{key}/{last}")
            except FileNotFoundError:
                if not tries_left:
                    raise
            missing = names - set(self.names(key))

    def copy(self, source: str, key: str) -> None:
        self.fs.cp_file(self._full(source), self._full(key))

    def create(self, data: bytes, key: str) -> bool:
        return _is_first(FileExistsError, lambda: self.fs.pipe_file(self._full(key), data, mode="create"))

    def swap(self, data: bytes, key: str, expected: bytes) -> bool:
        """Replace an object that contains the expected bytes: atomically on S3, without that guarantee elsewhere."""
        if not self._s3:
            if not self.exists(key) or self.read(key) != expected:
                return False
            self.fs.pipe_file(self._full(key), data)
            return True
        written, etag = self._swapped.pop(key, (None, ""))
        if written == expected and self._replace(key, data, etag):
            return True  # unchanged since this process wrote it
        try:
            etag = self._head(key)["ETag"]
            return self.read(key) == expected and self._replace(key, data, etag)
        except FileNotFoundError:
            return False

    def heeds_conditions(self, data: bytes, existing: str) -> bool:
        """Whether the server refuses to create an object that exists, and to replace one that has another entity tag.

        True on file systems other than S3, which are not asked.
        """
        return not self._s3 or not (self.create(data, existing) or self._replace(existing, data, NO_TAG))

    def _replace(self, key: str, data: bytes, etag: str) -> bool:
        """Replace an object if it still has that entity tag; return whether it was replaced."""
        bucket, name, _ = self.fs.split_path(self._full(key))

        def write() -> None:
            answer = self.fs.call_s3("put_object", Bucket=bucket, Key=name, Body=data, IfMatch=etag)
            self._swapped[key] = data, answer["ETag"]

        return _is_first(FileNotFoundError, write)

    def rename(self, key: str, new: str) -> None:
        """Copy a file, or the files directly in a folder, then delete them. If this is interrupted, the old name still
        exists and the caller repeats the call.
        """
        if self.exists(key):
            self.copy(key, new)
        for name in self.names(key):
            self.copy(f"{key}/{name}", f"{new}/{name}")
        self.delete(key)

    def delete(self, key: str, first: str | None = None) -> None:
        if first is not None:
            self._remove_object(f"{key}/{first}")
        with suppress(FileNotFoundError):  # missing, or removed by another process
            self._remove_all(self._full(key))

    def _remove_all(self, full: str) -> None:
        """Remove all files of a folder, or a file. S3 answers 200 even if it deletes none; s3fs ignores its errors."""
        if not self._s3:
            self.fs.rm(full, recursive=True)
            return
        from botocore.exceptions import ClientError  # not loaded for other remote file systems
        from s3fs.errors import translate_boto_error

        paths, refused = list(self.fs.find(full, withdirs=True)), list[dict[str, str]]()
        for start in range(0, len(paths), DELETED_AT_ONCE):
            parts = [self.fs.split_path(path) for path in paths[start : start + DELETED_AT_ONCE]]
            request = {"Objects": [{"Key": key} for _, key, _ in parts], "Quiet": True}
            answer = self.fs.call_s3("delete_objects", Bucket=parts[0][0], Delete=request)
            refused += [each for each in answer.get("Errors", ()) if each.get("Code") != "NoSuchKey"]
        if refused:
            raise translate_boto_error(ClientError({"Error": refused[0]}, "DeleteObjects"))

    def _remove_object(self, key: str) -> None:
        if self.exists(key):
            with suppress(FileNotFoundError):  # removed by another process
                self.fs.rm_file(self._full(key))

    def fetch(self, key: str, sha256: str | None, recheck: bool = False, beyond: bool = False) -> Path:
        """Return this process's local copy: a link to a copy shared by this machine's processes if the digest is known.

        `recheck` verifies the shared copy's content again; `beyond` lets it exceed the cache's limit.
        """
        path = self._own(key)
        fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
        if sha256 is None:
            self._download(key)(fresh)
        else:
            size, version = self._facts(key)
            self.cache.give(fresh, sha256, version, size, self._download(key), recheck, beyond)
        os.replace(fresh, path)  # readers of the older file keep it open
        fresh.unlink(missing_ok=True)  # `replace` does nothing if both already link to the same file
        return path

    def locate(self, key: str, sha256: str) -> Path:
        return self.fetch(key, sha256)

    def fetch_folder(self, key: str, digests: Mapping[str, str]) -> Path:
        """Return a local folder of this process with copies of these files, and no others."""
        with ThreadPoolExecutor(TRANSFERS) as pool:
            list(pool.map(lambda name: self.fetch(f"{key}/{name}", digests[name], beyond=True), digests))
        folder = self._own(f"{key}/any").parent
        for path in folder.iterdir():
            if path.name not in digests:
                path.unlink(missing_ok=True)
        return folder

    def release(self, key: str) -> None:
        path = self._own(key)
        if path.is_dir():
            shutil.rmtree(path)
            self.cache.trim()
        else:
            path.unlink(missing_ok=True)

    def trim(self) -> None:
        self.cache.trim()

    def room_beyond(self) -> int | None:
        return self.cache.room_beyond()

    def walk(self, key: str = "") -> Iterator[Stored]:
        for entry in files_at(self.fs, self._full(key) if key else self.root):
            if entry["type"] != "file":
                continue  # some servers keep an entry for an emptied folder
            name = str(entry["name"]).removeprefix(self.root).lstrip("/")
            yield Stored(name, int(entry["size"] or 0), _modified(entry))

    def modified(self, key: str) -> datetime | None:
        """When an object was written; None if it does not exist."""
        try:
            return _modified(self._head(key) if self._s3 else self.fs.info(self._full(key)))
        except FileNotFoundError:
            return None

    def unfinished_uploads(self) -> list[Stored]:
        if not self._s3:
            return []
        bucket, prefix, _ = self.fs.split_path(self.root)
        prefix = f"{prefix}/" if prefix else ""
        page: dict[str, Any] = {"IsTruncated": True, "NextKeyMarker": "", "NextUploadIdMarker": ""}
        found = []
        while page["IsTruncated"]:
            page = self.fs.call_s3(
                "list_multipart_uploads", Bucket=bucket, Prefix=prefix,
                KeyMarker=page["NextKeyMarker"], UploadIdMarker=page["NextUploadIdMarker"],
            )  # fmt: skip
            for upload in page.get("Uploads", ()):
                key, number = upload["Key"], upload["UploadId"]
                with suppress(FileNotFoundError):  # completed meanwhile
                    parts = self.fs.call_s3("list_parts", Bucket=bucket, Key=key, UploadId=number).get("Parts", ())
                    size = sum(part["Size"] for part in parts)
                    found.append(Stored(key.removeprefix(prefix), size, upload["Initiated"], number))
        return found

    def abort_upload(self, key: str, upload: str) -> None:
        bucket, name, _ = self.fs.split_path(self._full(key))
        with suppress(FileNotFoundError):
            self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=name, UploadId=upload)

    def _download(self, key: str) -> Callable[[Path], None]:
        return lambda path: self.fs.get_file(self._full(key), str(path))

    def _facts(self, key: str) -> tuple[int, str]:
        """The size, and a version that changes if the object is replaced."""
        if not self._s3:
            return int(self.fs.size(self._full(key))), str(self.fs.ukey(self._full(key)))
        head = self._head(key)
        return int(head["ContentLength"]), str(head["ETag"])

    def _head(self, key: str) -> dict[str, Any]:
        bucket, name, _ = self.fs.split_path(self._full(key))
        return dict(self.fs.call_s3("head_object", Bucket=bucket, Key=name))

    def _own(self, key: str) -> Path:
        """Path of the key in a folder of this process, which is removed by `let_go_of_copies` or when it ends."""
        path = Path(_own_folder(self.cache), hashlib.sha256(self.url.encode()).hexdigest(), self._checked(key))
        make_folders(path.parent)
        return path

    def _full(self, key: str) -> str:
        return f"{self.root}/{self._checked(key)}"

    def _checked(self, key: str) -> str:
        """Return the key (empty: the root), which becomes a local path; raise `StorageError` if it is invalid."""
        try:
            return key and plain_key(key)
        except ValueError as error:
            raise StorageError(f"{self.url}: {error}") from error


_own_folders: dict[tuple[int, Path], tuple[PrivateFolder, BlobCache]] = {}
_turn = Lock()


def _own_folder(cache: BlobCache) -> Path:
    """The folder of this process. A forked child has its own, so that it does not release its parent's copies."""
    with _turn:
        mine = os.getpid(), cache.work
        if mine not in _own_folders:
            cache.work.mkdir(parents=True, exist_ok=True)
            atexit.register(let_go_of_copies)
            _own_folders[mine] = PrivateFolder(cache.work), cache
        return _own_folders[mine][0].path


def let_go_of_copies() -> None:
    """Remove this process's links to fetched copies, so that they can be evicted."""
    with _turn:
        mine = [_own_folders.pop(key) for key in list(_own_folders) if key[0] == os.getpid()]
    for folder, cache in mine:
        folder.remove()
        cache.trim()


def _modified(entry: Mapping[str, Any]) -> datetime:
    """When an object was written; the name of the field depends on the file system."""
    when = next(entry[name] for name in ("LastModified", "created", "mtime") if name in entry)
    return datetime.fromtimestamp(when, UTC) if isinstance(when, float) else when


def _is_first(beaten: type[OSError], write: Callable[[], object]) -> bool:
    """Make a conditional write; return False if it was refused because another process was first.

    `beaten` is the exception that fsspec raises in that case if the server does not report the condition.
    """
    try:
        write()
    except OSError as error:
        refused = "pre-condition" in str(error) or "ConditionalRequestConflict" in str(error)
        if not (isinstance(error, beaten) or refused):
            raise
        return False
    return True
