"""A store in a local folder. Files are renamed or linked into place when they are whole and synced."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from trainer.stored import Stored


class LocalFiles:
    """Files below one folder, by key: the way from the folder, with forward slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, key: str) -> bool:
        return (self.root / key).exists()

    def names(self, key: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / key))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, key: str) -> int:
        return (self.root / key).stat().st_size

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with open(self.root / key, "rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def put(self, path: Path, key: str) -> None:
        """Move a file of the same file system into place."""
        target = self._place(key)
        sync_file(path)
        os.replace(path, target)
        sync_folder(target.parent)

    def put_folder(self, folder: Path, key: str, last: str) -> None:
        """Move a folder into the place of an older one, which loses its file named `last` first."""
        self.delete(key, first=last)
        target = self._place(key)
        for path in folder.iterdir():
            sync_file(path)
        sync_folder(folder)
        os.rename(folder, target)
        sync_folder(target.parent)

    def copy(self, source: str, key: str) -> None:
        """The two share their bytes where the file system can: published files never change."""
        target = self._place(key)
        target.unlink(missing_ok=True)
        try:
            os.link(self.root / source, target)
        except OSError:
            shutil.copyfile(self.root / source, target)
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
        sync_folder(target.parent)
        return True

    def swap(self, path: Path, key: str, expected: bytes) -> bool:
        """Move a file into the place of one that holds the expected bytes. A process that dies lets others go on."""
        with suppress(FileNotFoundError), alone(self.root / key):
            if self.read(key) == expected:
                self.put(path, key)
                return True
        return False

    def rename(self, key: str, new: str) -> None:
        os.rename(self.root / key, self.root / new)
        sync_folder((self.root / new).parent)

    def delete(self, key: str, first: str | None = None) -> None:
        path = self.root / key
        if first is not None and (path / first).exists():
            (path / first).unlink()
            sync_folder(path)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def fetch(self, key: str, sha256: str | None, check: bool = False) -> Path:
        return self.root / key

    def fetch_folder(self, key: str, digests: Mapping[str, str]) -> Path:
        return self.root / key

    def release(self, key: str) -> None:
        """Nothing to do: what `fetch` gives is the file itself."""

    def walk(self, key: str = "") -> Iterator[Stored]:
        for path in (self.root / key).rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    state = path.stat()
                    modified = datetime.fromtimestamp(state.st_mtime, UTC)
                    name = path.relative_to(self.root).as_posix()
                    yield Stored(name, state.st_size, modified, inode=state.st_ino, links=state.st_nlink)

    def unfinished_uploads(self) -> list[Stored]:
        return []

    def abort_upload(self, key: str, upload: str) -> None:
        """There are none."""

    def _place(self, key: str) -> Path:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes out of the same block for files of the same folder; one that dies lets go."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
