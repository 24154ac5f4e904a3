"""Symbolic links in a store that others can write to: those inside it are not followed, the owner's at its top are."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.report_runs import publish
from trainer.common.errors import StorageError
from trainer.store.artifact_files import fetch_artifact, find_damage
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store
from trainer.training.checkpoint import find_checkpoint
from trainer.training.logs import kept_log
from trainer.training.metrics_writer import RunLog

KEY = "runs/a/checkpoints/step-00000001"
REFUSED = r"is a symbolic link to .*: links inside a store are not followed"

USES: dict[str, Callable[[Store, str], object]] = {
    "exists": lambda store, key: store.exists(key),
    "read": lambda store, key: store.read_bytes(key),
    "size": lambda store, key: store.size(key),
    "fetch": lambda store, key: store.fetch(key),
    "swap": lambda store, key: store.swap(key, b"secret", b"new"),
    "copy": lambda store, key: store.copy(key, "runs/copy"),
}
WRITES: dict[str, Callable[[Store, str], object]] = {
    "write": lambda store, key: store.write_bytes(key, b"new"),
    "create": lambda store, key: store.create(key, b"new"),
    "delete": lambda store, key: store.delete(key),
    "rename": lambda store, key: store.rename(key, "runs/other"),
    "copy": lambda store, key: store.copy("runs/inside", key),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    store.write_bytes("runs/inside", b"inside")
    return store


def root(store: Store) -> Path:
    assert store.local is not None
    return store.local


@pytest.mark.parametrize("use", [*USES, "list"])
def test_a_link_in_place_of_a_file_or_folder_is_not_read_through(store: Store, outside: Path, use: str) -> None:
    (root(store) / "runs/file").symlink_to(outside / "secret")
    (root(store) / "runs/folder").symlink_to(outside)
    if use != "list":
        with pytest.raises(StorageError, match=REFUSED):
            USES[use](store, "runs/file")
        with pytest.raises(StorageError, match=REFUSED):
            USES[use](store, "runs/folder/secret")
    with pytest.raises(StorageError, match=REFUSED):
        store.names("runs/folder")
    assert [file.key for file in store.walk()] == ["runs/inside"]
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.parametrize("use", WRITES)
def test_nothing_is_written_through_a_linked_folder(store: Store, outside: Path, use: str) -> None:
    (root(store) / "runs/folder").symlink_to(outside)
    with pytest.raises(StorageError, match=REFUSED):
        WRITES[use](store, "runs/folder/secret")
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.parametrize("use", ["write", "delete", "rename", "copy"])
def test_a_link_itself_is_replaced_or_removed_and_what_it_leads_to_is_left_alone(
    store: Store, outside: Path, use: str
) -> None:
    for place, target in (("runs/link", outside / "secret"), ("runs/folder", outside)):
        (root(store) / place).symlink_to(target)
    WRITES[use](store, "runs/link")
    store.delete("runs/folder", first="secret")
    assert (outside / "secret").read_bytes() == b"secret"
    assert not (root(store) / "runs/link").is_symlink() and not (root(store) / "runs/folder").is_symlink()


def test_an_artifact_with_a_link_in_it_is_refused(store: Store, outside: Path) -> None:
    publish(store, KEY, "checkpoint", {"model.safetensors": b"secret"}, {"step": 1})
    manifest = read_manifest(store, KEY, "checkpoint")
    assert manifest is not None
    (root(store) / KEY / "model.safetensors").unlink()
    (root(store) / KEY / "model.safetensors").symlink_to(outside / "secret")
    with pytest.raises(StorageError, match=REFUSED):
        find_damage(store, KEY, manifest)
    with pytest.raises(StorageError, match=REFUSED):
        fetch_artifact(store, KEY, "checkpoint")
    with pytest.raises(StorageError, match=REFUSED):
        find_checkpoint(store, "runs/a")


def test_logs_and_curves_are_not_written_through_links(store: Store, outside: Path) -> None:
    (root(store) / "runs/a").mkdir()
    for name in ("logs", "tensorboard"):
        (root(store) / "runs/a" / name).symlink_to(outside)
    with pytest.raises(StorageError, match=REFUSED), kept_log(store, "runs/a", 0):
        pass
    with pytest.raises(StorageError, match=REFUSED):
        RunLog(store, "runs/a", 1)
    (root(store) / "runs/a/logs").unlink()
    (root(store) / "runs/a/logs").mkdir()
    (root(store) / "runs/a/logs/rank-0.log").symlink_to(outside / "secret")
    with pytest.raises(StorageError, match=REFUSED), kept_log(store, "runs/a", 0):
        pass
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_store_and_the_folders_right_in_it_may_be_links(tmp_path: Path) -> None:
    first = Store(str(tmp_path / "store"))
    publish(first, KEY, "checkpoint", {"model.safetensors": b"weights"}, {"step": 1})
    shutil.move(tmp_path / "store/runs", tmp_path / "disk")
    (tmp_path / "store/runs").symlink_to(tmp_path / "disk")
    (tmp_path / "linked").symlink_to(tmp_path / "store")
    store = Store(str(tmp_path / "linked"))
    manifest = read_manifest(store, KEY, "checkpoint")
    assert manifest is not None and find_damage(store, KEY, manifest) == {}
    assert (fetch_artifact(store, KEY, "checkpoint") / "model.safetensors").read_bytes() == b"weights"
    assert store.names("runs") == ["a"]


def test_a_folder_that_cannot_be_entered_does_not_look_empty(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("runs")
    store = Store(str(tmp_path))
    for look in (lambda: store.exists("runs/a"), lambda: store.names("runs"), lambda: store.find_bytes("runs/a")):
        with pytest.raises(StorageError, match="Too many levels of symbolic links"):
            look()
