"""A store in a local folder. Complete, synced files are renamed or linked into place.

The root and its direct subfolders (such as runs) may be symbolic links, so that a part of the store can be on another
disk. Deeper links are not followed for reading or writing, because other users may have created them.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainer.common.errors import StorageError
from trainer.store import roots
from trainer.store.checked_files import require_content
from trainer.store.names import plain_key, plain_name
from trainer.store.private_folders import STAGING, files_below


class Stored(NamedTuple):
    """Listing entry of a file, or of an unfinished upload, whose id is `upload`.

    For local files also the inode and the number of hard links.
    """

    key: str
    size: int
    modified: datetime
    upload: str = ""
    inode: int = 0
    links: int = 1


class LocalFiles:
    """Files below one folder, by key: the path relative to the folder, with forward slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lasting_folders: set[Path] = set()

    def lasting(self, key: str) -> list[Path]:
        """Folders that, once created, exist while the store is mounted; with a linked subfolder, on both disks."""
        top = self.root / key.partition("/")[0]
        return [
            folder / inside
            for folder in [self.root, *([top] if os.path.islink(top) else [])]
            for inside in ("", STAGING)
        ]

    def exists(self, key: str) -> bool:
        """Whether a file or folder exists. `Path.exists` takes some errors for a missing one; in Python 3.14, all."""
        try:
            self.at(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, key: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.at(key)) if not key or name != STAGING)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, key: str) -> dict[str, int]:
        try:
            with os.scandir(self.at(key)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def size(self, key: str) -> int:
        return self.at(key).stat().st_size

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            with open(self.at(key), "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        except NotADirectoryError as error:  # a file where a folder is expected
            raise FileNotFoundError(*error.args) from error

    def put(self, path: Path, key: str) -> None:
        """Move a file of the same file system into place."""
        target = self._place(key)
        _open_to_readers(path)
        sync_file(path)
        os.replace(path, target)
        sync_folder(target.parent)

    def begin(self, path: Path, key: str) -> Path:
        """Move a file of the same file system to where it is appended to."""
        self.put(path, key)
        return self.at(key)

    def put_folder(self, folder: Path, key: str, last: str, same: bool = False) -> None:
        """Replace a folder; the file `last` of the old folder is removed first, even with `same`."""
        target = self._place(key)
        for path in folder.iterdir():
            _open_to_readers(path)
            sync_file(path)
        sync_folder(folder)
        with alone(target):  # another process may be publishing the same folder
            self.delete(key, first=last)
            os.rename(folder, target)
        sync_folder(target.parent)

    def copy(self, source: str, key: str) -> None:
        """Create a hard link if the file system can: published files never change."""
        target = self._place(key)
        target.unlink(missing_ok=True)
        original = self.at(source)
        try:
            os.link(original, target)
        except OSError:
            shutil.copyfile(original, target)
            sync_file(target)
        sync_folder(target.parent)

    def create(self, path: Path, key: str) -> bool:
        """Link a file into place unless one exists."""
        target = self._place(key)
        sync_file(path)
        try:
            os.link(path, target)
        except FileExistsError:
            return False
        finally:  # the process that created it may have been killed before it synced the folder
            sync_folder(target.parent)
        return True

    def swap(self, path: Path, key: str, expected: bytes) -> bool:
        """Replace a file that contains the expected bytes, under a lock that is released if the process dies."""
        with suppress(FileNotFoundError), alone(self.at(key)):
            if self.read(key) == expected:
                self.put(path, key)
                return True
        return False

    def rename(self, key: str, new: str) -> None:
        target = self._entry(new)
        source = self._entry(key)
        os.rename(source, target)
        for folder in {source.parent, target.parent}:
            sync_folder(folder)

    def delete(self, key: str, first: str | None = None) -> None:
        """Delete and sync: callers rely on the deletion surviving a power cut before they delete other files."""
        path = self._entry(key)
        if path.is_dir() and not path.is_symlink():
            if first is not None:
                (path / first).unlink(missing_ok=True)
                sync_folder(path)
            shutil.rmtree(path, onerror=_pass_over_missing)
        else:
            path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # its folder was removed, too
            sync_folder(path.parent)

    def fetch(self, key: str, sha256: str | None, recheck: bool = False, beyond: bool = False) -> Path:
        path = self.at(key)
        if sha256 is not None:
            require_content(path, sha256, recheck)
        return path

    def locate(self, key: str, sha256: str) -> Path:
        return self.at(key)

    def fetch_folder(self, key: str, digests: Mapping[str, str]) -> Path:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.fetch(f"{key}/{name}", digests[name]), digests))
        return self.at(key)

    def release(self, key: str) -> None:
        """Do nothing: `fetch` returns the file itself."""

    def trim(self) -> None:
        """Do nothing: there are no copies."""

    def room_beyond(self) -> int | None:
        return None

    def walk(self, key: str = "") -> Iterator[Stored]:
        roots = [self.at(key)] if key else [self.root, *linked_folders(self.root)]
        for path in (path for root in roots for path in files_below(root)):
            if STAGING in path.relative_to(self.root).parts[1:]:
                continue  # staged files of a folder on another disk
            with suppress(FileNotFoundError):
                state = path.lstat()
                if stat.S_ISREG(state.st_mode):
                    modified = datetime.fromtimestamp(state.st_mtime, UTC)
                    name = path.relative_to(self.root).as_posix()
                    yield Stored(name, state.st_size, modified, inode=state.st_ino, links=state.st_nlink)

    def modified(self, key: str) -> datetime | None:
        """When a file was written; None if it does not exist."""
        try:
            return datetime.fromtimestamp(self.at(key).lstat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def unfinished_uploads(self) -> list[Stored]:
        return []

    def abort_upload(self, key: str, upload: str) -> None:
        """Do nothing: local stores have no uploads."""

    def at(self, key: str) -> Path:
        """Path of a key, or of the root for an empty key. Raises `StorageError` if it leads out of the store, by its
        spelling or a link.
        """
        if not key:
            return self.root
        try:
            plain_key(key)
        except ValueError as error:
            raise StorageError(f"{self.root}: {error}") from error
        place = f"{self.root}/{key}"
        end = place.find("/", len(f"{self.root}/"))  # skip the direct subfolder of the root, which may be a link
        while end != -1:
            end = place.find("/", end + 1)
            _refuse_link(place if end == -1 else place[:end])
        return Path(place)

    def _entry(self, key: str) -> Path:
        """Path of a key for renaming, replacing or removing the entry, which may itself be a link."""
        folder, _, name = key.rpartition("/")
        try:
            return (self.at(folder) if folder else self.root) / plain_name(name)
        except ValueError as error:
            raise StorageError(f"{self.root}: {error}") from error

    def _place(self, key: str) -> Path:
        target = self._entry(key)
        self.make_folder(target.parent)
        return target

    def make_folder(self, folder: Path) -> None:
        """Create a folder of the store and its parents, synced; raise `FileNotFoundError` if the store is unmounted."""
        if away := roots.find_away(*self.lasting(folder.relative_to(self.root).as_posix())):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(away))
        if folder == self.root:
            if missing := [each for each in (folder, *folder.parents) if not each.exists()]:
                folder.mkdir(parents=True, exist_ok=True)
            for each in missing:
                sync_folder(each.parent)
            return
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
        elif folder in self._lasting_folders:
            return
        else:  # the process that created it may have been killed before it synced the parent
            self.make_folder(folder.parent)
        sync_folder(folder.parent)
        self._lasting_folders.add(folder)


def linked_folders(root: Path | None) -> list[Path]:
    """Direct subfolders of a local store that are links, for example to another disk."""
    entries = os.scandir(root) if root is not None and root.is_dir() else ()
    return sorted(root / entry.name for entry in entries if entry.is_symlink() and entry.is_dir()) if root else []


def _pass_over_missing(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    """Ignore files that another process has removed."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _refuse_link(path: str) -> None:
    """Raise `StorageError` for a symbolic link. One `lstat` is enough; resolving the path would take many calls."""
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return  # missing or unreachable: the caller's own access reports it
    if is_link:
        raise StorageError(
            f"{path} is a symbolic link to {os.readlink(path)}: links inside a store are not followed. Replace it with "
            "its target; only a direct subfolder of the store's root may be a link, for example to another disk"
        )


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock the folder of a path against other processes; the lock is released if the process dies."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_to_readers(path: Path) -> None:
    """Make a file that a library created private readable as the umask allows for new files."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        path.chmod(mode | (0o666 & ~_umask()))


@cache
def _umask() -> int:
    """The umask of the process."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        if found := re.search(r"^Umask:\s*(\d+)$", status, re.MULTILINE):
            return int(found[1], 8)
    return 0o077  # unknown: assume the strictest


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
