"""A local store whose folder is taken away while work goes on: it is waited for, and no new one is begun in its
place.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.processes import start_warm
from tests.support import curve, final_bytes, only_run, small_values, write_config
from tests.trainer.small_jobs import LONG, Finished
from trainer.common.errors import StorageError
from trainer.common.transient import PATIENCE, retry_transient
from trainer.records.lease import Lease
from trainer.store.private_folders import STAGING
from trainer.store.probes import check_writable
from trainer.store.storage import Store

USES: dict[str, Callable[[Store], object]] = {
    "exists": lambda store: store.exists("runs/x/config.json"),
    "names": lambda store: store.names("runs"),
    "read": lambda store: store.read_bytes("runs/x/config.json"),
    "read of what never was": lambda store: store.read_json("runs/x/none.json"),
    "size": lambda store: store.size("runs/x/config.json"),
    "write": lambda store: store.write_bytes("runs/x/new", b"1"),
    "create": lambda store: store.create("runs/x/new", b"1"),
    "swap": lambda store: store.swap("runs/x/config.json", b"{}", b"1"),
    "rename": lambda store: store.rename("runs/x/config.json", "runs/x/other"),
    "delete": lambda store: store.delete("runs/x/config.json"),
    "copy": lambda store: store.copy("runs/x/config.json", "runs/x/copy"),
    "fetch": lambda store: store.fetch("runs/x/config.json", "0" * 64),
    "fetch a folder": lambda store: store.fetch_folder("runs/x", {"config.json": "0" * 64}),
    "walk": lambda store: list(store.walk()),
    "staging": lambda store: store.staging().__enter__(),
    "require it": lambda store: store.require_there(),
}


@contextmanager
def moved(folder: Path) -> Iterator[None]:
    away = folder.rename(folder.with_name("elsewhere"))
    try:
        yield
    finally:
        assert not folder.exists(), sorted(folder.rglob("*"))
        away.rename(folder)


@contextmanager
def unmounted(folder: Path) -> Iterator[None]:
    """The root stays, as an empty folder."""
    subprocess.run(["mount", "--bind", folder, keep := folder.with_name("keep")], check=True)
    subprocess.run(["umount", folder], check=True)
    try:
        yield
    finally:
        assert not any(folder.iterdir())
        subprocess.run(["mount", "--move", keep, folder], check=True)


@pytest.mark.parametrize("use", USES)
def test_a_store_that_was_moved_away_is_away_and_not_made_again(tmp_path: Path, use: str) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_bytes("runs/x/config.json", b"{}")
    for each in (store, Store(str(tmp_path / "store"))):
        with (
            moved(tmp_path / "store"),
            pytest.raises(StorageError, match=r"store .* is unavailable: .* existed before") as error,
        ):
            USES[use](each)
        assert error.value.transient
    assert store.read_bytes("runs/x/config.json") == b"{}"


@pytest.mark.parametrize("use", ["exists", "names", "write", "create", "walk"])
def test_a_disk_that_is_not_mounted_any_more_is_away(tmp_path: Path, use: str) -> None:
    (tmp_path / "keep").mkdir()
    with small_disk(tmp_path / "store") as disk:
        store = Store(str(disk))
        store.write_bytes("runs/x/config.json", b"{}")
        with unmounted(disk), pytest.raises(StorageError, match=r"is unavailable") as error:
            USES[use](store)
        assert error.value.transient
        assert store.read_bytes("runs/x/config.json") == b"{}"


@pytest.mark.parametrize("use", ["exists", "names", "write", "create"])
def test_a_folder_on_another_disk_is_away_where_its_link_leads_nowhere(tmp_path: Path, use: str) -> None:
    (tmp_path / "other" / "runs").mkdir(parents=True)
    store = Store(str(tmp_path / "store"))
    store.write_bytes("shards/y", b"1")
    (tmp_path / "store" / "runs").symlink_to(tmp_path / "other" / "runs")
    store.write_bytes("runs/x/config.json", b"{}")
    with moved(tmp_path / "other"), pytest.raises(StorageError, match=r"is unavailable: .*runs existed") as error:
        USES[use](store)
    assert error.value.transient
    assert store.read_bytes("runs/x/config.json") == b"{}"


@pytest.mark.parametrize("use", ["exists", "names", "write", "create", "staging"])
def test_a_folder_on_another_disk_is_away_where_its_mount_point_is_empty(tmp_path: Path, use: str) -> None:
    (tmp_path / "disk").mkdir()
    store = Store(str(tmp_path / "store"))
    store.write_bytes("shards/y", b"1")
    (tmp_path / "store" / "runs").symlink_to(tmp_path / "disk")
    store.write_bytes("runs/x/config.json", b"{}")
    (tmp_path / "disk").rename(tmp_path / "elsewhere")
    (tmp_path / "disk").mkdir()
    uses = {**USES, "staging": lambda store: store.staging(key="runs/x").__enter__()}
    with pytest.raises(StorageError, match=r"is unavailable: .*runs/.staging existed") as error:
        uses[use](store)
    assert error.value.transient and not any((tmp_path / "disk").iterdir())
    (tmp_path / "disk").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "disk")
    assert store.read_bytes("runs/x/config.json") == b"{}"


def test_a_store_by_another_spelling_is_the_same(tmp_path: Path) -> None:
    Store(str(tmp_path / "store")).write_bytes("runs/x", b"1")
    with moved(tmp_path / "store"), pytest.raises(StorageError, match="is unavailable"):
        Store(f"{tmp_path}/store/../store").write_bytes("runs/x", b"1")


def test_a_job_begins_a_new_store_where_there_is_none(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "deep" / "store"))
    for _ in range(2):
        check_writable(store)
        store.write_bytes("runs/x", b"1")
        shutil.rmtree(tmp_path / "deep")


@pytest.mark.parametrize("use", [use for use in USES if not use.startswith("fetch")])
def test_a_store_whose_private_folders_alone_were_removed_is_there(tmp_path: Path, use: str) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_bytes("runs/x/config.json", b"{}")
    shutil.rmtree(tmp_path / "store" / STAGING)
    try:
        USES[use](store)
    except FileNotFoundError:
        assert use == "read of what never was"
    store.write_bytes("runs/x/other", b"1")
    assert store.read_bytes("runs/x/other") == b"1" and (tmp_path / "store" / STAGING).is_dir()


def test_what_is_written_while_the_store_is_away_is_written_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE, "60")
    store = Store(str(tmp_path / "store"))
    store.write_bytes("runs/x/config.json", b"{}")
    told: list[str] = []
    with moved(tmp_path / "store"):
        writing = threading.Thread(
            target=lambda: retry_transient(lambda: store.write_bytes("runs/x/new", b"1"), told.append)
        )
        writing.start()
        while not told:
            time.sleep(0.01)
    writing.join()
    assert store.read_bytes("runs/x/new") == b"1"


def test_a_lease_is_not_lost_with_its_store(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with Lease(store, "runs/x") as lease:
        with moved(tmp_path / "store"), pytest.raises(StorageError, match="is unavailable"):
            lease._show_life()
        lease._show_life()
        lease.check()


@pytest.mark.deep
def test_training_waits_for_its_store(
    raw: Path, prepared: tuple[Path, object], finished: Finished, tmp_path: Path
) -> None:
    """Each step is saved, so that the store is missed at once."""
    store = Path(shutil.copytree(prepared[0], tmp_path / "store"))
    config = write_config(tmp_path / "job.yaml", small_values(raw, store, **LONG))
    running = start_warm(tmp_path / "said", "trainer.__main__", config)
    while not any(store.glob("runs/*/checkpoint-last")):
        assert running.status() is None, running.output()
        time.sleep(0.01)
    with moved(store):
        time.sleep(6)
        assert running.status() is None, running.output()
    ended = running.wait()
    assert ended.status == 0, ended.stderr
    assert "is unavailable" in ended.stderr and "Traceback" not in ended.stderr
    said = [line.partition(" ")[2] for line in ended.stderr.splitlines() if "is unavailable" in line]
    assert len(said) == len(set(said)) <= 8, ended.stderr
    assert only_run(store) == finished.run and final_bytes(store) == final_bytes(finished.store)
    assert curve(store) == curve(finished.store)
    Store(str(store)).sweep()  # as the next start does, of what could not be removed while it was away
    assert not list((store / STAGING).iterdir()), os.listdir(store / STAGING)
