"""Checkpoints and models larger than the cache of remote files: continued from, measured, predicted with, let go of."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.disks import small_disk
from tests.processes import Running, highest, start_warm
from tests.s3 import S3Server
from tests.support import cpu_runtime, final_bytes, small_job, small_values, write_config
from tests.trainer.made import prepare
from tests.trainer.small_jobs import LONG, Finished
from tests.trainer.store.test_streaming import held
from tests.trainer.training.test_s3_runs import has_committed, upload
from trainer.common.errors import StorageError
from trainer.common.progress import silent
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import PredictJob
from trainer.kinds.labelled.predict import predict_texts
from trainer.kinds.pretraining.preflight import preflight
from trainer.models.pretrained import find_model
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.preflight.resources import require_checkpoint_room
from trainer.store.blob_cache import BEYOND, NAME
from trainer.store.storage import Store

BOUND = 40_000
"""Bytes of the cache: those of all shards together, and less than a model's."""


def kept(cache: Path) -> int:
    """The bytes of all copies in a cache."""
    return sum(path.stat().st_size for path in cache.iterdir() if NAME.fullmatch(path.name))


@pytest.fixture
def small_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this process's own, smaller than a model."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(BOUND))
    return tmp_path / "cache"


@pytest.mark.deep
@pytest.mark.slow
def test_a_run_goes_on_elsewhere_from_a_checkpoint_larger_than_the_cache(
    raw: Path, finished: Finished, s3: S3Server, tmp_path: Path
) -> None:
    store = Store(s3.new_store())
    config = write_config(tmp_path / "job.yaml", small_values(raw, store.url, **LONG))

    def start(number: int) -> Running:
        env = {**s3.env, "HEADRACE_CACHE": str(tmp_path / f"cache-{number}"), "HEADRACE_CACHE_BYTES": str(BOUND)}
        return start_warm(tmp_path / f"said-{number}", "trainer.__main__", config, env=env)

    assert start(1).send_when(signal.SIGKILL, lambda: has_committed(store, 5)).status == -signal.SIGKILL
    (run,) = store.names("runs")
    with highest(lambda: held(tmp_path / "cache-2"), every=0.02) as shards:
        ended = start(2).wait()
    assert ended.status == 0, ended
    assert "continuing from s3://" in ended.stderr
    assert store.size(f"runs/{run}/final/model.safetensors") > BOUND
    assert store.read_bytes(f"runs/{run}/final/model.safetensors") == final_bytes(finished.store)
    assert store.exists(f"runs/{run}/eval.json")
    assert 0 < max(shards) <= BOUND
    assert kept(tmp_path / "cache-2") <= BOUND, "what went beyond the bound is let go of at the end"


def test_a_checkpoint_larger_than_the_cache_is_measured_as_on_disk(
    finished: Finished, s3: S3Server, small_cache: Path
) -> None:
    cpu_runtime()
    store = Store(upload(finished.store, s3.new_store()))
    found = [
        evaluate_checkpoint(EvaluateJob(store=place, checkpoint=f"{finished.run}/checkpoint-best"), silent()).groups
        for place in (store.url, str(shutil.copytree(finished.store, small_cache.parent / "disk")))
    ]
    assert found[0] == found[1]
    key = find_model(store, f"{finished.run}/checkpoint-best").key
    assert kept(small_cache) > BOUND
    store.release(str(key))
    assert kept(small_cache) <= BOUND


@pytest.mark.deep
def test_texts_are_predicted_with_a_model_larger_than_the_cache(
    tuned: Finished, pairs: Path, s3: S3Server, small_cache: Path
) -> None:
    cpu_runtime()
    store = Store(upload(tuned.store, s3.new_store()))
    predictions = []
    for place in (store.url, str(shutil.copytree(tuned.store, small_cache.parent / "disk"))):
        values: dict[str, Any] = {"store": place, "model": tuned.run.removeprefix("runs/")}
        values["data"] = {"source": "jsonl", "paths": [f"{pairs}/test.jsonl"]}
        made = predict_texts(validate_job(PredictJob, values, "test"), silent())
        predictions.append(Store(place).read_bytes(f"{made.key}/predictions.jsonl"))
    assert predictions[0] == predictions[1]
    assert any(BEYOND in path.name for path in small_cache.iterdir())


def test_a_disk_without_room_for_a_checkpoint_is_refused_before_work_starts(
    raw: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("HEADRACE_CACHE", str(disk))
        config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 256, "n_head": 2, "n_positions": 32}
        job = small_job(raw, s3.new_store(), model__config=config)
        with pytest.raises(
            StorageError, match=rf"a checkpoint of this model takes about .* MiB .* the disk of {disk} has .* free"
        ):
            preflight(job, silent())
        preflight(small_job(raw, s3.new_store()), silent())
        with pytest.raises(StorageError, match="set HEADRACE_CACHE to a folder on a larger disk"):
            require_checkpoint_room(Store(job.store), 2**41)
    require_checkpoint_room(Store(str(tmp_path)), 2**60)


@pytest.mark.deep
def test_reading_all_shards_of_a_bucket_stays_within_the_bound(raw: Path, s3: S3Server, small_cache: Path) -> None:
    job = small_job(raw, s3.new_store(), data__shards={"num_shards": 16, "piece_bytes": 1024}).preparation()
    prepared = prepare(job, silent())
    assert sum(ref.size for ref in prepared.shards) > BOUND
    with highest(lambda: held(small_cache), every=0.02) as shards:
        again = prepare(job.model_copy(update={"verify": True}), silent())
    assert all(ref.reused for ref in again.shards)
    assert 0 < max(shards) <= BOUND
    assert not any(BEYOND in path.name for path in small_cache.iterdir())
