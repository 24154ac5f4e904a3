"""Remote file systems that cannot look something up: it is not taken for missing."""

import errno
import uuid
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from trainer.common.errors import StorageError
from trainer.store.storage import Store


@pytest.fixture
def store() -> Store:
    store = Store(f"memory://{uuid.uuid4().hex}")
    for name in ("a", "runs/a", "runs/one/a"):
        store.write_bytes(name, b"1")
    return store


def refused(path: str) -> PermissionError:
    """The error of a server that lets this user read only a part."""
    return PermissionError(errno.EACCES, "Permission denied", path)


def test_what_cannot_be_looked_up_is_not_said_to_be_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fs: Any, path: str, **how: Any) -> Any:
        raise refused(path)

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    monkeypatch.setattr(MemoryFileSystem, "exists", AbstractFileSystem.exists)  # as of most other file systems
    with pytest.raises(StorageError, match=r"cannot look for .*/runs/a: Permission denied"):
        store.exists("runs/a")
    with pytest.raises(StorageError, match=r"cannot write .*/runs/a: Permission denied"):
        store.swap("runs/a", b"1", b"2")


@pytest.mark.parametrize("folder", ["", "runs", "runs/one"])
def test_a_folder_that_cannot_be_listed_is_not_skipped(
    folder: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, listed = f"{store.url}/{folder}".removeprefix("memory:/").rstrip("/"), MemoryFileSystem.ls

    def refuse(fs: Any, path: str, **how: Any) -> Any:
        if path.rstrip("/") == closed:
            raise refused(path)
        return listed(fs, path, **how)

    assert sorted(file.key for file in store.walk()) == ["a", "runs/a", "runs/one/a"]
    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    monkeypatch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)  # as of most other file systems
    with pytest.raises(StorageError, match=r"cannot list .*: Permission denied"):
        list(store.walk())


def test_a_folder_that_goes_while_a_store_is_listed_holds_no_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = MemoryFileSystem.ls

    def remove(fs: Any, path: str, **how: Any) -> Any:
        if path.rstrip("/").endswith("/one"):
            raise FileNotFoundError(path)
        return listed(fs, path, **how)

    monkeypatch.setattr(MemoryFileSystem, "ls", remove)
    monkeypatch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)  # as of most other file systems
    assert sorted(file.key for file in store.walk()) == ["a", "runs/a"]
