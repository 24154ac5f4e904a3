"""The artifact store: a local folder or any fsspec URL, written so that a kill at any instant leaves no half file.

Keys are paths relative to the store's root, with forward slashes. Local files are written in a staging folder, synced and
renamed into place; remote objects are uploaded whole, so they appear all at once.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from trainer.errors import StorageError

STAGING = ".staging"
FULL = (errno.ENOSPC, errno.EDQUOT)


class Store:
    """Reads and publishes files under one root.

    Raises `StorageError` with the operation and the path when the file system refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if len(url) > 1 else url
        self.fs, self.root = fsspec.url_to_fs(self.url)
        self.local = Path(self.root) if isinstance(self.fs, LocalFileSystem) else None

    def path(self, key: str) -> str:
        """The full path or URL of a key, for messages and for people."""
        return str(self.local / key) if self.local else f"{self.url}/{key}"

    def exists(self, key: str) -> bool:
        with self._explained("look for", key):
            return bool(self.fs.exists(f"{self.root}/{key}"))

    def names(self, key: str) -> list[str]:
        """The sorted names inside a folder; empty if there is none."""
        with self._explained("list", key):
            try:
                entries = self.fs.ls(f"{self.root}/{key}", detail=False, refresh=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return sorted(name for entry in entries if (name := str(entry).rstrip("/").rsplit("/", 1)[-1]))

    def read_bytes(self, key: str) -> bytes:
        with self._explained("read", key):
            return bytes(self.fs.cat_file(f"{self.root}/{key}"))

    def read_json(self, key: str) -> Any:
        """A JSON file's value, or None if there is no such file."""
        try:
            with self._explained("read", key):
                return json.loads(self.fs.cat_file(f"{self.root}/{key}"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StorageError(f"{self.path(key)} is not valid JSON ({error}): it was not written by headrace") from error

    def write_bytes(self, key: str, data: bytes) -> None:
        with self.writing(key) as path:
            path.write_bytes(data)

    def write_json(self, key: str, value: Any, indent: int | None = 2) -> None:
        self.write_bytes(key, (json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False) + "\n").encode())

    @contextmanager
    def writing(self, key: str) -> Iterator[Path]:
        """Yield a local path to write; its file takes the key's place, all at once, when the block ends well."""
        with self.staging() as folder:
            path = folder / key.rsplit("/", 1)[-1]
            with self._explained("write", key):
                yield path
            self.put(path, key)

    def put(self, path: Path, key: str) -> None:
        """Publish a finished local file under a key. A file inside the staging folder is moved, not copied."""
        with self._explained("write", key):
            if self.local is None:
                self.fs.put_file(str(path), f"{self.root}/{key}")
                return
            target = self.local / key
            target.parent.mkdir(parents=True, exist_ok=True)
            sync_file(path)
            os.replace(path, target)
            sync_folder(target.parent)

    def put_folder(self, folder: Path, key: str, last: str) -> None:
        """Publish a staged folder under a key; the file named `last` appears after all the others, or with them."""
        with self._explained("write", key):
            self.delete(key, first=last)
            if self.local is None:
                names = sorted(path.name for path in folder.iterdir() if path.name != last)
                for name in [*names, last]:
                    self.fs.put_file(str(folder / name), f"{self.root}/{key}/{name}")
                return
            target = self.local / key
            target.parent.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                sync_file(path)
            sync_folder(folder)
            os.rename(folder, target)
            sync_folder(target.parent)

    def copy(self, source: str, key: str) -> None:
        """Publish a second copy of a file; on a local disk the two share their bytes (published files never change)."""
        with self._explained("write", key):
            if self.local is None:
                self.fs.cp_file(f"{self.root}/{source}", f"{self.root}/{key}")
                return
            target = self.local / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            try:
                os.link(self.local / source, target)
            except OSError:
                shutil.copyfile(self.local / source, target)
                sync_file(target)
            sync_folder(target.parent)

    def create(self, key: str, data: bytes) -> bool:
        """Write a file that must not exist yet; returns whether this call made it. Of several at once, one does."""
        if self.local is None:
            with self._explained("write", key):
                try:
                    self.fs.pipe_file(f"{self.root}/{key}", data, mode="create")
                except FileExistsError:
                    return False
                return True
        with self.staging() as folder, self._explained("write", key):
            path, target = folder / "new", self.local / key
            path.write_bytes(data)
            sync_file(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except FileExistsError:
                return False
            sync_folder(target.parent)
            return True

    def rename(self, key: str, new: str) -> None:
        """Give a file or folder another name; nothing happens if it is gone."""
        with self._explained("rename", key), suppress(FileNotFoundError):
            if self.local is None:
                self.fs.mv(f"{self.root}/{key}", f"{self.root}/{new}", recursive=True)
                return
            os.rename(self.local / key, self.local / new)
            sync_folder((self.local / new).parent)

    @contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        """Keep other processes out of the same block, for a folder of a local store. A process that dies lets go."""
        if self.local is None:
            yield
            return
        descriptor = os.open(self.local / key, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def delete(self, key: str, first: str | None = None) -> None:
        """Remove a file or a folder, if it is there; of a folder, the file named `first` before the rest."""
        with self._explained("delete", key):
            full = f"{self.root}/{key}"
            if first is not None and self.fs.exists(f"{full}/{first}"):
                self.fs.rm_file(f"{full}/{first}")
                if self.local:
                    sync_folder(self.local / key)
            if self.fs.exists(full):
                self.fs.rm(full, recursive=True)

    def fetch(self, key: str) -> Path:
        """A local path that holds the key's bytes: the file itself, or a copy of the remote object."""
        if self.local is not None:
            return self.local / key
        path = Path(tempfile.gettempdir(), "headrace-cache", self.url.replace("/", "_"), key)
        with self._explained("read", key):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
            try:
                self.fs.get_file(f"{self.root}/{key}", str(partial))
                os.replace(partial, path)  # whoever has the older file open or mapped keeps it
            finally:
                partial.unlink(missing_ok=True)
        return path

    def fetch_folder(self, key: str) -> Path:
        """A local folder that holds the files directly under a key."""
        if self.local is not None:
            return self.local / key
        paths = [self.fetch(f"{key}/{name}") for name in self.names(key)]
        return paths[0].parent

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A private folder on the store's own file system (or a temporary one), removed at the end of the block."""
        base = self.local / STAGING if self.local else Path(tempfile.gettempdir())
        folder = base / f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:12]}"
        with self._explained("write", STAGING):
            folder.mkdir(parents=True)
        try:
            with self.explained_when_full(STAGING):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what processes of this machine that no longer live left in the staging folder."""
        if self.local is None or not (self.local / STAGING).is_dir():
            return
        for folder in (self.local / STAGING).iterdir():
            owner = re.fullmatch(r"(.+)_(\d+)_[0-9a-f]{12}", folder.name)
            if owner and owner[1] == socket.gethostname() and not _alive(int(owner[2])):
                shutil.rmtree(folder, ignore_errors=True)

    def check_writable(self) -> None:
        """Raise `StorageError` unless a file can be written, read back and removed."""
        probe = f"{STAGING}/probe-{uuid.uuid4().hex[:12]}"
        try:
            self.write_bytes(probe, b"probe")
        except FileNotFoundError as error:
            raise StorageError(f"cannot write {self.url}: {error}; check that the disk or the bucket exists") from error
        self.delete(probe)

    def used_bytes(self) -> int:
        """Bytes that a local store holds already; 0 for a remote one."""
        if self.local is None or not self.local.is_dir():
            return 0
        return sum(path.stat().st_size for path in self.local.rglob("*") if path.is_file())

    def free_bytes(self) -> int | None:
        """Bytes that a local store's disk still has; None for a remote one."""
        if self.local is None:
            return None
        existing = next(path for path in [self.local, *self.local.parents] if path.exists())
        return shutil.disk_usage(existing).free

    @contextmanager
    def explained_when_full(self, key: str) -> Iterator[None]:
        """For work whose libraries write by themselves: turn their errors about a full disk into a `StorageError`."""
        try:
            yield
        except Exception as error:  # safetensors has an error of its own, which only spells the number out
            if getattr(error, "errno", None) not in FULL and f"(os error {errno.ENOSPC})" not in str(error):
                raise
            with self._explained("write", key):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error

    @contextmanager
    def _explained(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            hint = {
                errno.ENOSPC: "free some space there, then run it again: finished work is kept",
                errno.EDQUOT: "free some of your quota there, then run it again: finished work is kept",
                errno.EROFS: "choose a store that can be written",
                errno.EACCES: "give this user the right to write there, or choose another store",
                errno.ENOTDIR: "choose a folder, not a file, for the store",
            }.get(error.errno or 0, "check that the store is reachable and whole")
            raise StorageError(f"cannot {operation} {self.path(key)}: {error.strerror or error}; {hint}") from error


def sync_file(path: Path) -> None:
    """Make a file's bytes survive a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make a folder's entries survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not yet waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return True
    return state not in ("Z", "X")
