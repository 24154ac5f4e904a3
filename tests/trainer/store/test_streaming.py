"""A corpus on S3 that is far larger than the cache: trained on shard by shard, to the weights of a run on disk."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from samples.corpora import main as write_sample_corpora
from tests.processes import highest, start_warm
from tests.s3 import S3Server
from tests.support import SMALL_MODEL, final_bytes, small_values, write_config
from tests.trainer.made import prepare
from trainer.common.progress import silent
from trainer.config.files import validate_job
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import open_dataset, read_batch
from trainer.data.shards import KIND, open_shards
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.store.blob_cache import BEYOND, NAME
from trainer.store.manifest import read_manifest
from trainer.store.names import FINAL
from trainer.store.storage import Store

SHARDS = 160


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some megabytes of text."""
    folder = tmp_path_factory.mktemp("sample")
    write_sample_corpora([str(folder)])
    return folder / "code"


def values_of(corpus: Path, store: str) -> dict[str, Any]:
    """One epoch of windows from one shard at a time."""
    values = small_values(
        corpus, store, training__locality=1, training__max_steps=None, training__epochs=1, training__context=128,
        training__global_batch=16, training__log_every=50, evaluation__during_training=1,
        model__config={**SMALL_MODEL, "n_embd": 8, "n_positions": 128},
        data__validation_fraction=0.003, data__shards={"num_shards": SHARDS, "piece_bytes": 2048},
    )  # fmt: skip
    values["data"]["corpora"] = [{"name": "code", "paths": [f"{corpus}/*.py"], "format": "source"}]
    return values


def held(cache: Path) -> int:
    """The bytes of the copies in a cache and of those in use, models and checkpoints left out; each file counts once.

    Two looks must agree, also on names: in one alone, a file that makes room and the one that it makes room for can
    both be seen, and the latter may have the former's inode.
    """
    found = None
    while found != (found := _copies(cache)):
        pass
    return sum(dict(found.values()).values())


def _copies(cache: Path) -> dict[str, tuple[int, int]]:
    """Inode and size by path."""
    files = {}
    for folder, _, names in os.walk(cache):
        for name in names:
            with suppress(FileNotFoundError):
                if (NAME.fullmatch(name) and BEYOND not in name) or re.fullmatch(r"(shard|validation)-\d+\.bin", name):
                    path = os.path.join(folder, name)
                    state = os.stat(path)
                    files[path] = (state.st_ino, state.st_size)
    return files


@pytest.mark.long
def test_a_corpus_twenty_times_the_cache_gives_the_weights_of_a_run_on_disk(
    corpus: Path, s3: S3Server, tmp_path: Path
) -> None:
    local = start_warm(tmp_path / "on-disk", "trainer.__main__", write_config(
        tmp_path / "disk.yaml", values_of(corpus, str(tmp_path / "store"))
    )).wait(240)  # fmt: skip
    assert local.status == 0, local
    store = Store(str(tmp_path / "store"))
    (name,) = store.names("shards")
    manifest = read_manifest(store, f"shards/{name}", KIND)
    assert manifest is not None
    limit = sum(file.size for file in manifest.files if file.name.endswith(".bin")) // 20

    url = s3.new_store()
    env = {**s3.env, "HEADRACE_CACHE": str(tmp_path / "cache"), "HEADRACE_CACHE_BYTES": str(limit)}
    with highest(lambda: held(tmp_path / "cache"), every=0.02) as sizes:
        streamed = start_warm(
            tmp_path / "on-s3", "trainer.__main__", write_config(tmp_path / "s3.yaml", values_of(corpus, url)), env=env
        ).wait(240)
    assert streamed.status == 0, streamed
    (run,) = Store(url).names("runs")
    assert Store(url).read_bytes(f"runs/{run}/{FINAL}/model.safetensors") == final_bytes(tmp_path / "store")
    assert limit / 2 < max(sizes) <= limit


@pytest.mark.deep
def test_batches_are_those_of_a_store_on_disk_and_only_what_is_read_next_is_held(
    corpus: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "100000")
    batches = []
    for url in (str(tmp_path / "store"), s3.new_store()):
        values = values_of(corpus, url)
        values["data"]["corpora"] = [{"name": "code", "paths": [f"{corpus}/[a-c]*.py"], "format": "lines"}]
        values["data"]["shards"] = {"num_shards": 40, "piece_bytes": 1024}
        values["training"]["global_batch"] = 8
        job = validate_job(PipelineJob, values, "test")
        store, data = Store(url), prepare(job.preparation(), silent())
        plan = make_plan(job.training, shard_manifests(store, data), 1)
        with highest(lambda: held(tmp_path / "cache"), every=0.02) as sizes:
            dataset = open_dataset(store, data, job.training, plan, None)
            read = [
                read_batch(number, plan, dataset.order, dataset.windows, 0)
                for number in range(2 * plan.steps_per_epoch)
            ]
        batches.append(torch.cat([part["input_ids"] for batch in read for part in batch.micro_batches]))
    assert torch.equal(*batches)
    whole = sum(
        s.train.largest(None) + s.validation.largest(None) for s in (open_shards(store, r.key) for r in data.shards)
    )
    assert 0 < max(sizes) <= 100_000 < whole / 4


@pytest.mark.deep
@pytest.mark.slow
def test_a_cache_that_is_too_small_is_refused_with_what_to_do(raw: Path, s3: S3Server, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, s3.new_store()))
    env = {**s3.env, "HEADRACE_CACHE": str(tmp_path / "cache"), "HEADRACE_CACHE_BYTES": "5000"}
    ended = start_warm(tmp_path / "said", "trainer.__main__", config, env=env).wait(120)
    assert ended.status not in (0, 1)
    assert "this machine's cache holds 5,000: raise HEADRACE_CACHE_BYTES, set training.locality" in ended.stderr
    assert "Traceback" not in ended.stderr
