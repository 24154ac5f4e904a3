"""The store: all or nothing, readable errors, and the same behaviour on a remote file system."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pytest

from trainer.common.errors import ConfigError, StorageError
from trainer.store.probes import check_writable
from trainer.store.remote import RemoteObjects
from trainer.store.storage import STAGING, Store


def remote(store: Store) -> RemoteObjects:
    assert isinstance(store.files, RemoteObjects)
    return store.files


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
    check_writable(empty_store)
    assert leftovers(empty_store) == []


def test_a_published_folder_holds_its_files_and_no_older_ones(any_store: Store) -> None:
    put_folder(any_store, "a/set", {"old": b"1", "both": b"2", "manifest.json": b"{}"})
    files = {"both": b"3", "new": b"4", "manifest.json": b"[]"}
    put_folder(any_store, "a/set", files)
    assert content(any_store, "a/set") == files


def test_of_several_that_publish_the_same_folder_at_once_none_fails_and_it_is_whole(atomic_store: Store) -> None:
    files = {**{f"part-{number}": bytes([number]) * 1000 for number in range(5)}, "manifest.json": b"{}"}
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: put_folder(atomic_store, "a/set", files), range(30)))
    assert content(atomic_store, "a/set") == files


def test_what_another_process_removes_at_the_same_time_is_removed(
    remote_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("older", "sub/older", "manifest.json"):
        remote_store.write_bytes(f"set/{name}", b"old")
    remove = remote(remote_store)._remove_all

    def raced(path: str) -> None:
        remove(path)
        remove(path)

    monkeypatch.setattr(remote(remote_store), "_remove_all", raced)
    put_folder(remote_store, "set", {"new": b"1", "manifest.json": b"{}"})
    assert content(remote_store, "set") == {"new": b"1", "manifest.json": b"{}"}
    remote_store.delete("set")
    assert remote_store.names("set") == []


def test_of_several_that_remove_a_folder_at_once_none_fails(any_store: Store) -> None:
    for number in range(50):
        any_store.write_bytes(f"set/{number % 5}/{number}", b"x")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: any_store.delete("set"), range(4)))
    assert [*any_store.walk("set")] == []  # a server may keep an empty folder of it, which is no file


@pytest.mark.parametrize("url", ["", " ", "s3://", "file://", "file:///", "memory:///"])
def test_a_store_without_a_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="has no path; set a folder, or a URL such as s3://bucket/folder"):
        Store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3:/bucket/x",
        "s3:bucket",
        "s3//bucket/x",
        "$HOME/store",
        "/data/$USER/store",
        "a/${STORE}",
        "{{ store }}",
        "file::s3://b/p",
        "C:\\data\\store",
    ],
)
def test_a_mistyped_store_is_no_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is neither a folder nor a URL"):
        Store(url)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("url", ["s3://bucket//x", "s3://bucket/x//y/", "memory://a//b"])
def test_a_remote_store_with_a_slash_too_many_is_no_other_store(url: str) -> None:
    with pytest.raises(ConfigError, match="names a folder without a name; expected one slash between names"):
        Store(url)


@pytest.mark.parametrize("name", ["s3", "gsm8k", "azure", "a$b", "./s3:x", "http"])
def test_an_unusual_name_is_a_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store(name).local == tmp_path / name


@pytest.mark.parametrize("url", ["memory://exp[12]", "memory://a/b*", "s3://headrace/only?"])
def test_a_remote_store_whose_name_is_a_pattern_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match="which is a wildcard; choose a URL without it"):
        Store(url)


def test_an_address_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be opened: .*refused"):
        Store("ftp://127.0.0.1:9/x")


def test_an_upload_that_fails_leaves_a_folder_without_a_manifest(
    remote_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(remote_store, "set", {"a": b"1", "b": b"1", "manifest.json": b"{}"})
    files = remote(remote_store)
    put = files.put

    def fails(path: Path, key: str) -> None:
        if key.endswith("/b"):
            raise ConnectionResetError("the network went away")
        put(path, key)

    monkeypatch.setattr(files, "put", fails)
    with pytest.raises(StorageError, match=r"cannot write .*set: the network went away"):
        put_folder(remote_store, "set", {"a": b"2", "b": b"2", "manifest.json": b"[]"})
    assert not remote_store.exists("set/manifest.json")


def removals(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the folder `set` holds each time that it is about to be removed with all that is in it."""
    seen: list[list[str]] = []
    place, name = (shutil, "rmtree") if store.local else (remote(store), "_remove_all")
    remove = getattr(place, name)

    def noted(path: Any, **options: Any) -> None:
        if str(path).endswith("/set"):
            seen.append(store.names("set"))
        remove(path, **options)

    monkeypatch.setattr(place, name, noted)
    return seen


def test_a_folder_that_is_deleted_loses_its_manifest_first(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put_folder(any_store, "set", {"a": b"1", "manifest.json": b"{}"})
    seen = removals(any_store, monkeypatch)
    any_store.delete("set", first="manifest.json")
    assert seen == [["a"]]
    assert any_store.names("set") == []


def test_a_local_folder_that_is_replaced_loses_its_manifest_first(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(empty_store, "set", {"a": b"1", "manifest.json": b"{}"})
    seen = removals(empty_store, monkeypatch)
    put_folder(empty_store, "set", {"b": b"2", "manifest.json": b"{}"})
    assert seen == [["a"]]
    assert empty_store.names("set") == ["b", "manifest.json"]


def test_a_remote_folder_that_is_replaced_has_no_manifest_until_its_files_are_the_new_ones(
    remote_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(remote_store, "set", {"a": b"1", "z": b"1", "manifest.json": b"{}"})
    files = remote(remote_store)
    put = files.put
    seen: list[tuple[str, list[str]]] = []

    def noted(path: Path, key: str) -> None:
        seen.append((path.name, remote_store.names("set")))
        put(path, key)

    monkeypatch.setattr(files, "put", noted)
    put_folder(remote_store, "set", {"z": b"2", "manifest.json": b"[]"})
    assert seen == [("z", ["a", "z"]), ("manifest.json", ["z"])]
    assert content(remote_store, "set") == {"z": b"2", "manifest.json": b"[]"}


def test_a_remote_folder_removed_while_its_manifest_was_sent_is_sent_again_whole(
    remote_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = remote(remote_store)
    put = files.put
    removals = {"set/b": ["set/b"], "set/manifest.json": ["set", "set/manifest.json"]}

    def removed(path: Path, key: str) -> None:
        put(path, key)
        if removals.get(key):
            remote_store.delete(removals[key].pop(0))
            raise FileNotFoundError(key)  # as `put` does on S3, if the object is gone when its size is checked

    monkeypatch.setattr(files, "put", removed)
    put_folder(remote_store, "set", {"a": b"1", "b": b"2", "manifest.json": b"{}"})
    assert content(remote_store, "set") == {"a": b"1", "b": b"2", "manifest.json": b"{}"}
    assert not any(removals.values())


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
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in {"a": b"1", "manifest.json": b"{}"}.items()}
    folder = any_store.fetch_folder("set", digests)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"1", "manifest.json": b"{}"}


def test_a_file_that_is_fetched_twice_is_let_go_of_at_once(remote_store: Store) -> None:
    remote_store.write_bytes("some/file", b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    paths = {remote_store.fetch("some/file", digest) for _ in range(2)}
    (path,) = paths
    assert path.stat().st_nlink == 2, "the machine's copy and this process's name of it"
    remote_store.release("some/file")
    assert not list(path.parent.iterdir())


def test_of_many_who_create_a_file_one_does(any_store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: any_store.create("a/lease", str(n).encode()), range(8)))
    assert sum(made) == 1
    assert any_store.read_bytes("a/lease") == str(made.index(True)).encode()


def test_of_many_who_swap_a_file_one_does(atomic_store: Store) -> None:
    atomic_store.write_bytes("a/lease", b"old")
    with ThreadPoolExecutor(8) as pool:
        swapped = list(pool.map(lambda n: atomic_store.swap("a/lease", b"old", str(n).encode()), range(8)))
    assert sum(swapped) == 1
    assert atomic_store.read_bytes("a/lease") == str(swapped.index(True)).encode()


def test_a_file_that_is_gone_or_another_is_not_swapped(any_store: Store) -> None:
    assert not any_store.swap("a/lease", b"old", b"new")
    any_store.write_bytes("a/lease", b"other")
    assert not any_store.swap("a/lease", b"old", b"new")
    assert any_store.read_bytes("a/lease") == b"other"


def test_a_stretch_of_a_file_is_read(any_store: Store) -> None:
    any_store.write_bytes("a", b"0123456789")
    assert any_store.read_bytes("a", 2, 5) == b"234"
    assert any_store.read_bytes("a", 0, 3) == b"012"
    assert any_store.read_bytes("a", 7) == b"789"


def test_a_renamed_folders_files_are_found_under_its_new_name_alone(any_store: Store) -> None:
    put_folder(any_store, "a/set", {"x": b"1", "manifest.json": b"{}"})
    any_store.rename("a/set", "a/other")
    assert content(any_store, "a/other") == {"x": b"1", "manifest.json": b"{}"}
    assert any_store.names("a/set") == []
    any_store.write_bytes("a/file", b"1")
    any_store.rename("a/file", "a/renamed")
    assert any_store.read_bytes("a/renamed") == b"1"
    assert not any_store.exists("a/file")
    any_store.rename("a/none", "a/again")
    assert any_store.names("a/again") == []


@pytest.mark.parametrize("below", ["", "/store", "/deep/er/store"])
def test_a_store_at_or_below_a_file_is_refused_readably(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    store = Store(f"{tmp_path}/file{below}")
    with pytest.raises(
        StorageError, match=r"cannot write .*file.*: Not a directory; choose a folder, not a file, for the store"
    ):
        check_writable(store)
    assert (tmp_path / "file").read_text() == "text"


def test_a_store_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*: File name too long; check that the store is reachable"):
        check_writable(Store(str(tmp_path / ("x" * 300))))


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


def test_a_folder_that_goes_while_a_store_is_listed_holds_no_files(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    keys = [f"{top}/{name}/file" for top in ("runs", "shards") for name in ("a", "b")]
    for key in keys:
        store.write_bytes(key, b"1")
    listed = store.walk()
    first = next(listed).key
    gone = [key for key in keys if key.split("/")[:2] != first.split("/")[:2]]
    for key in gone:
        shutil.rmtree((tmp_path / key).parent)
    assert [file.key for file in listed] == []


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """One that every user may enter, as pytest's own may not be."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("closed", ["lost+found", "runs"])
def test_a_folder_that_may_not_be_read_is_told_unless_it_is_the_disk_s_own(closed: str, shared_folder: Path) -> None:
    store = Store(str(shared_folder))
    store.write_bytes("runs/a", b"1")
    (shared_folder / closed).mkdir(exist_ok=True)
    (shared_folder / closed).chmod(0o700)
    told = (
        nullcontext()
        if closed == "lost+found"
        else pytest.raises(StorageError, match=r"cannot list .*Permission denied")
    )
    try:
        os.seteuid(65534)
        with told:
            assert [file.key for file in store.walk()] == ["runs/a"]
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_what_a_library_made_private_is_published_as_readable_as_the_umask_lets_it_be(
    umask: int, expected: int, tmp_path: Path
) -> None:
    """As safetensors makes its files."""
    program = f"""
import os, sys
from pathlib import Path
os.umask({umask})
from trainer.store.storage import Store
store = Store(sys.argv[1])
with store.staging() as folder:
    for name in ("a", "b"):
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600))
    store.put(folder / "a", "alone/a")
    store.put_folder(folder, "whole", last="b")
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert {oct((tmp_path / key).stat().st_mode & 0o777) for key in ("alone/a", "whole/b")} == {oct(expected)}
