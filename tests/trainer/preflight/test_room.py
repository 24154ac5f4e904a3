"""Room on a store's disks: what others have written is no free space, and folders of the store may be on disks of their
own.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests import ROOT
from tests.depth import once
from tests.support import cpu_runtime, only_run, small_job
from tests.trainer.preparing import leftovers
from trainer.common.errors import StorageError
from trainer.common.progress import silent
from trainer.config.jobs import GarbageJob
from trainer.kinds.pretraining.preflight import preflight
from trainer.pipelines.any_kind import train
from trainer.preflight.resources import require_room
from trainer.records.plans import PreparedData
from trainer.registry.garbage import collect
from trainer.registry.leftovers import find_leftovers
from trainer.store.artifact_files import find_damage
from trainer.store.manifest import read_manifest
from trainer.store.names import FINAL, FINAL_KIND
from trainer.store.storage import Store


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than that of the test's files."""
    own = tmp_path.stat().st_dev
    other = next(place for place in ("/dev/shm", ROOT) if os.stat(place).st_dev != own)
    with TemporaryDirectory(dir=other) as folder:
        yield Path(folder)


@pytest.fixture
def spread(stocked: Path, other_disk: Path) -> Path:
    """A store with data whose runs are on another disk."""
    (other_disk / "runs").mkdir()
    (stocked / "runs").symlink_to(other_disk / "runs")
    return stocked


def test_a_run_may_be_on_another_disk(raw: Path, spread: Path, data: PreparedData) -> None:
    cpu_runtime()
    train(small_job(raw, spread), silent(), data)
    store = Store(str(spread))
    run = f"runs/{store.names('runs')[0]}"
    manifest = read_manifest(store, f"{run}/{FINAL}", FINAL_KIND)
    assert manifest is not None and find_damage(store, f"{run}/{FINAL}", manifest) == {}
    assert len(store.names("runs")) == 1, "private folders are not listed"
    assert not [file.key for file in store.walk() if ".staging" in file.key]
    assert {file.key for file in store.walk() if file.key.startswith(f"{run}/")} >= {f"{run}/config.json"}
    assert leftovers(spread / "runs" / ".staging") == leftovers(spread / ".staging") == []
    assert find_leftovers(store) == []
    assert [each.key for each in collect(GarbageJob(store=str(spread), runs_older_than_days=0))] == [run]


def test_what_a_kill_leaves_there_is_swept(spread: Path) -> None:
    store = Store(str(spread))
    child = os.fork()
    if child == 0:
        with store.staging(key="runs/a/b") as folder:
            (folder / "half").write_bytes(b"half")
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert len(list((spread / "runs" / ".staging").iterdir())) == 2
    store.sweep()
    assert list((spread / "runs" / ".staging").iterdir()) == []


def test_each_disk_is_asked_for_what_goes_there(spread: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(spread))
    monkeypatch.setattr(Store, "free_bytes", lambda store, folder="": {"shards": 1000, "runs": 50}[folder])
    require_room(store, {"shards": 1000, "runs": 50}, lambda folder: 0, 1, 12)
    with pytest.raises(
        StorageError, match=f"needs about 51 bytes on {spread}/runs, which has 50 bytes free, for the checkpoints of 1 "
    ):
        require_room(store, {"shards": 10, "runs": 51}, lambda folder: 0, 1, 12)
    require_room(store, {"shards": 10, "runs": 51}, lambda folder: 1, 1, 12)


def leave_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(Store, "free_bytes", lambda store, folder="": free)


def test_what_others_have_written_is_no_free_space(
    raw: Path, stocked: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(raw, stocked)
    needed = preflight(job, silent()).about_disk_bytes
    shards = sum(ref.size for ref in data.shards)
    (stocked / "runs" / "another").mkdir(parents=True)
    (stocked / "runs" / "another" / "weights").write_bytes(bytes(2 * needed))
    leave_free(monkeypatch, needed - shards - 1)
    with pytest.raises(StorageError, match=f"the job needs about .* on {stocked}.*, which has .* free"):
        preflight(job, silent())
    leave_free(monkeypatch, needed)
    preflight(job, silent())


def test_what_the_job_has_written_itself_needs_no_more_room(
    raw: Path, stocked: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(raw, stocked)
    needed = preflight(job, silent()).about_disk_bytes
    cpu_runtime()
    train(job, silent(), data)
    written = sum(path.stat().st_size for path in (stocked / only_run(stocked)).rglob("*") if path.is_file())
    leave_free(monkeypatch, needed - min(written, needed) // 2)
    preflight(job, silent())
    shutil.rmtree(stocked / "runs")
    with pytest.raises(StorageError, match="the job needs about"):
        preflight(job, silent())


@pytest.mark.parametrize(
    "optimizer", once({}, {"optimizer": "adafactor"}, {"optimizer": "sgd"}, {"optimizer": "muon"}), ids=str
)
def test_the_disk_of_a_run_that_keeps_every_checkpoint_is_what_it_takes(
    raw: Path, stocked: Path, data: PreparedData, optimizer: dict[str, str]
) -> None:
    training = {"save_every": 1, "keep_last": 1000, "keep_epochs": 0, **optimizer}
    model = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 32}
    changes = {f"training__{name}": value for name, value in training.items()}
    job = small_job(raw, stocked, **changes, model__config=model)
    asked = preflight(job, silent())
    cpu_runtime()
    train(job, silent(), data)
    weights = [path.stat().st_size for path in (stocked / only_run(stocked)).rglob("*.safetensors")]
    three = preflight(job.model_copy(update={"training": job.training.model_copy(update={"keep_last": 1})}), silent())
    shards = three.about_disk_bytes - 3 * asked.checkpoint_bytes - 4 * asked.parameters
    assert len(weights) == 6 * 2 + 1
    assert asked.about_disk_bytes - shards == pytest.approx(sum(weights), rel=0.05)
