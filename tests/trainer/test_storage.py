"""The store: all or nothing, readable errors, and the same behaviour on a remote file system."""

import os
import tempfile
import uuid
from pathlib import Path

import fsspec
import pytest

from trainer.errors import StorageError
from trainer.storage import STAGING, Store


@pytest.fixture(params=["local", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A local store and a remote one, whose copies of files are put where the test's own are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def put_folder(store: Store, key: str, files: dict[str, bytes]) -> None:
    """Stage a folder with some files and publish it."""
    with store.staging() as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        store.put_folder(folder, key, last="manifest.json")


def content(store: Store, key: str) -> dict[str, bytes]:
    return {name: store.read_bytes(f"{key}/{name}") for name in store.names(key)}


def leftovers(store: Store) -> list[str]:
    return store.names(STAGING)


def test_what_was_written_is_read_back(any_store: Store) -> None:
    any_store.write_bytes("a/b/c.bin", b"\x00\xff")
    any_store.write_json("a/d.json", {"ü": [1, 2.5, None]})
    assert any_store.read_bytes("a/b/c.bin") == b"\x00\xff"
    assert any_store.read_json("a/d.json") == {"ü": [1, 2.5, None]}
    assert any_store.names("a") == ["b", "d.json"]
    assert any_store.fetch("a/b/c.bin").read_bytes() == b"\x00\xff"


def test_what_is_not_there_is_said_not_to_be(any_store: Store) -> None:
    assert not any_store.exists("a/b")
    assert any_store.names("a") == []
    assert any_store.read_json("a/b.json") is None
    with pytest.raises(FileNotFoundError):
        any_store.read_bytes("a/b")
    any_store.delete("a")


def test_writing_again_replaces_the_whole_file(any_store: Store) -> None:
    any_store.write_bytes("a", b"a long first version")
    any_store.write_bytes("a", b"second")
    assert any_store.read_bytes("a") == b"second"


def test_an_error_while_writing_leaves_the_old_file(any_store: Store) -> None:
    any_store.write_bytes("a", b"old")
    with pytest.raises(ZeroDivisionError), any_store.writing("a") as path:
        path.write_bytes(b"half of the new")
        _ = 1 / 0
    assert any_store.read_bytes("a") == b"old"
    assert leftovers(any_store) == []


def test_a_write_leaves_nothing_in_the_staging_folder(empty_store: Store) -> None:
    empty_store.write_bytes("a/b", b"data")
    put_folder(empty_store, "c", {"x": b"1", "manifest.json": b"{}"})
    empty_store.check_writable()
    assert leftovers(empty_store) == []


def test_a_published_folder_holds_its_files_and_no_older_ones(any_store: Store) -> None:
    put_folder(any_store, "a/set", {"old": b"1", "both": b"2", "manifest.json": b"{}"})
    files = {"both": b"3", "new": b"4", "manifest.json": b"[]"}
    put_folder(any_store, "a/set", files)
    assert content(any_store, "a/set") == files


def test_a_remote_folders_manifest_appears_after_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}")
    put = store.fs.put_file
    order: list[str] = []

    def noted(source: str, target: str) -> None:
        order.append(target.rsplit("/", 1)[-1])
        put(source, target)

    monkeypatch.setattr(store.fs, "put_file", noted)
    put_folder(store, "set", {"z": b"1", "manifest.json": b"{}", "a": b"2"})
    assert order == ["a", "z", "manifest.json"]


def test_an_upload_that_fails_leaves_a_folder_without_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}")
    put_folder(store, "set", {"a": b"1", "b": b"1", "manifest.json": b"{}"})
    put = store.fs.put_file

    def fails(source: str, target: str) -> None:
        if target.endswith("/b"):
            raise ConnectionResetError("the network went away")
        put(source, target)

    monkeypatch.setattr(store.fs, "put_file", fails)
    with pytest.raises(StorageError, match=r"cannot write .*set: the network went away"):
        put_folder(store, "set", {"a": b"2", "b": b"2", "manifest.json": b"[]"})
    assert not store.exists("set/manifest.json")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_deleted_or_replaced_loses_its_manifest_first(
    replaced: bool, any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(any_store, "set", {"a": b"1", "manifest.json": b"{}"})
    seen: list[list[str]] = []
    remove = any_store.fs.rm

    def noted(path: str, recursive: bool) -> None:
        seen.append(any_store.names("set"))
        remove(path, recursive=recursive)

    monkeypatch.setattr(any_store.fs, "rm", noted)
    if replaced:
        put_folder(any_store, "set", {"b": b"2", "manifest.json": b"{}"})
    else:
        any_store.delete("set", first="manifest.json")
    assert seen == [["a"]]
    assert any_store.names("set") == (["b", "manifest.json"] if replaced else [])


def test_a_copy_has_the_same_bytes_and_outlives_its_source(any_store: Store) -> None:
    any_store.write_bytes("a/x", b"bytes")
    any_store.write_bytes("b/y", b"other")
    any_store.copy("a/x", "b/y")
    any_store.write_bytes("a/x", b"changed")
    assert any_store.read_bytes("b/y") == b"bytes"
    any_store.delete("a")
    assert any_store.read_bytes("b/y") == b"bytes"


def test_a_fetched_folder_holds_the_files_under_its_key(any_store: Store) -> None:
    put_folder(any_store, "set", {"a": b"1", "manifest.json": b"{}"})
    folder = any_store.fetch_folder("set")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"1", "manifest.json": b"{}"}


@pytest.mark.parametrize("below", ["", "/store", "/deep/er/store"])
def test_a_store_at_or_below_a_file_is_refused_readably(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    store = Store(f"{tmp_path}/file{below}")
    with pytest.raises(
        StorageError, match=r"cannot write .*file.*: Not a directory; choose a folder, not a file, for the store"
    ):
        store.check_writable()
    assert (tmp_path / "file").read_text() == "text"


def test_a_store_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*: File name too long; check that the store is reachable"):
        Store(str(tmp_path / ("x" * 300))).check_writable()


def test_json_that_something_else_wrote_is_refused_readably(any_store: Store) -> None:
    any_store.write_bytes("a.json", b"{")
    with pytest.raises(StorageError, match=r"a\.json is not valid JSON .*it was not written by headrace"):
        any_store.read_json("a.json")


def test_the_same_files_are_reached_by_path_and_by_url(tmp_path: Path) -> None:
    Store(str(tmp_path)).write_bytes("a/b", b"data")
    assert Store(f"file://{tmp_path}/").read_bytes("a/b") == b"data"
    with fsspec.open(f"file://{tmp_path}/a/b") as file:
        assert file.read() == b"data"


def test_a_key_is_shown_as_people_would_write_it(tmp_path: Path) -> None:
    assert Store(str(tmp_path)).path("a/b") == os.path.join(tmp_path, "a", "b")
    assert Store("memory://bucket/x/").path("a/b") == "memory://bucket/x/a/b"


def test_free_space_is_known_before_the_store_exists(tmp_path: Path) -> None:
    free = Store(str(tmp_path / "not" / "yet")).free_bytes()
    assert free is not None
    assert free > 0
    assert Store("memory://bucket").free_bytes() is None
