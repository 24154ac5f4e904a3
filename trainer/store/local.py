"""A store in a local folder. Files are renamed or linked into place when they are whole and synced.

The root, and the folders right in it (runs, say), may be symbolic links: that is how whoever owns the store puts a part
of it on another disk. Links further inside are not followed, neither for reading nor for writing: others may have put
them there.
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
    """What a listing says of a file, or of an upload that was never completed, which has an id.

    Of the local files that share their bytes with others: the number of those bytes, and how many names they have.
    """

    key: str
    size: int
    modified: datetime
    upload: str = ""
    inode: int = 0
    links: int = 1


class LocalFiles:
    """Files below one folder, by key: the way from the folder, with forward slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lasting_folders: set[Path] = set()

    def lasting(self, key: str) -> list[Path]:
        """What is there as long as the store is, once it was there: of a folder right in it that is a link, on both
        disks.
        """
        top = self.root / key.partition("/")[0]
        return [
            folder / inside
            for folder in [self.root, *([top] if os.path.islink(top) else [])]
            for inside in ("", STAGING)
        ]

    def exists(self, key: str) -> bool:
        return self.at(key).exists()

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
        except NotADirectoryError as error:  # a stray file among folders holds no file
            raise FileNotFoundError(*error.args) from error

    def put(self, path: Path, key: str) -> None:
        """Move a file of the same file system into place."""
        target = self._place(key)
        _open_to_readers(path)
        sync_file(path)
        os.replace(path, target)
        sync_folder(target.parent)

    def begin(self, path: Path, key: str) -> Path:
        """Move a file of the same file system to where it is to grow."""
        self.put(path, key)
        return self.at(key)

    def put_folder(self, folder: Path, key: str, last: str, same: bool = False) -> None:
        """Move a folder into the place of an older one, which loses its file named `last` first, even if that is the
        same.
        """
        target = self._place(key)
        for path in folder.iterdir():
            _open_to_readers(path)
            sync_file(path)
        sync_folder(folder)
        with alone(target):  # another process may be publishing the same, whose folder would be in the way
            self.delete(key, first=last)
            os.rename(folder, target)
        sync_folder(target.parent)

    def copy(self, source: str, key: str) -> None:
        """The two share their bytes where the file system can: published files never change."""
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
        """Link a file into place unless there is one."""
        target = self._place(key)
        sync_file(path)
        try:
            os.link(path, target)
        except FileExistsError:
            return False
        finally:  # whoever made it first may have been killed before it synced the folder
            sync_folder(target.parent)
        return True

    def swap(self, path: Path, key: str, expected: bytes) -> bool:
        """Move a file into the place of one that holds the expected bytes. A process that dies lets others go on."""
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
        """What is gone once this returns stays gone after a power cut: others are removed because this one is."""
        path = self._entry(key)
        if path.is_dir() and not path.is_symlink():
            if first is not None:
                (path / first).unlink(missing_ok=True)
                sync_folder(path)
            shutil.rmtree(path, onerror=_pass_over_missing)
        else:
            path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # gone with the folder that it was in
            sync_folder(path.parent)

    def fetch(self, key: str, sha256: str | None, check: bool = False, beyond: bool = False) -> Path:
        path = self.at(key)
        if sha256 is not None:
            require_content(path, sha256, check)
        return path

    def locate(self, key: str, sha256: str) -> Path:
        return self.at(key)

    def fetch_folder(self, key: str, digests: Mapping[str, str]) -> Path:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.fetch(f"{key}/{name}", digests[name]), digests))
        return self.at(key)

    def release(self, key: str) -> None:
        """Nothing to do: what `fetch` gives is the file itself."""

    def trim(self) -> None:
        """Nothing to do: there are no copies."""

    def room_beyond(self) -> int | None:
        return None

    def walk(self, key: str = "") -> Iterator[Stored]:
        roots = [self.at(key)] if key else [self.root, *linked_folders(self.root)]
        for path in (path for root in roots for path in files_below(root)):
            if STAGING in path.relative_to(self.root).parts[1:]:
                continue  # what is about to be moved into a folder on another disk
            with suppress(FileNotFoundError):
                state = path.lstat()
                if stat.S_ISREG(state.st_mode):
                    modified = datetime.fromtimestamp(state.st_mtime, UTC)
                    name = path.relative_to(self.root).as_posix()
                    yield Stored(name, state.st_size, modified, inode=state.st_ino, links=state.st_nlink)

    def modified(self, key: str) -> datetime | None:
        """When a file was written; None if there is none."""
        try:
            return datetime.fromtimestamp(self.at(key).lstat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def unfinished_uploads(self) -> list[Stored]:
        return []

    def abort_upload(self, key: str, upload: str) -> None:
        """There are none."""

    def at(self, key: str) -> Path:
        """The place of a key, or of the store for none. Raises `StorageError` if it leads out, by its spelling or by a
        link.
        """
        if not key:
            return self.root
        try:
            plain_key(key)
        except ValueError as error:
            raise StorageError(f"{self.root}: {error}") from error
        place = f"{self.root}/{key}"
        end = place.find("/", len(f"{self.root}/"))  # of the folder right in the root
        while end != -1:
            end = place.find("/", end + 1)
            _refuse_link(place if end == -1 else place[:end])
        return Path(place)

    def _entry(self, key: str) -> Path:
        """The place of a key that may itself be a link, which is then what is renamed, replaced or removed."""
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
        """Make a folder of the store, with those above it, so that it survives a power cut; but not what is away of a
        store that was there before.
        """
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
        else:  # whoever made it may have been killed before it synced what it is in
            self.make_folder(folder.parent)
        sync_folder(folder.parent)
        self._lasting_folders.add(folder)


def linked_folders(root: Path | None) -> list[Path]:
    """The folders right in a local store that are links, as to another disk."""
    entries = os.scandir(root) if root is not None and root.is_dir() else ()
    return sorted(root / entry.name for entry in entries if entry.is_symlink() and entry.is_dir()) if root else []


def _pass_over_missing(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    """What cannot be removed because another process has."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _refuse_link(path: str) -> None:
    """Raise `StorageError` for a symbolic link. One look at the entry itself: resolving each path would take many."""
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return  # it is not there, or cannot be reached: whoever uses it says so
    if is_link:
        raise StorageError(
            f"{path} is a symbolic link to {os.readlink(path)}: links inside a store are not followed. Put what it "
            "leads to in its place; a folder right in the store's root may be a link, to have it on another disk"
        )


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes out of the same block for files of the same folder; one that dies lets go."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_to_readers(path: Path) -> None:
    """Let others read a file that a library made for its owner alone, as far as the umask lets them read new files."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        path.chmod(mode | (0o666 & ~_umask()))


@cache
def _umask() -> int:
    """Which permissions new files do not get, as the process was started."""
    with suppress(OSError):
        told = Path("/proc/self/status").read_text()
        if found := re.search(r"^Umask:\s*(\d+)$", told, re.MULTILINE):
            return int(found[1], 8)
    return 0o077  # nothing tells: nobody is let in


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
