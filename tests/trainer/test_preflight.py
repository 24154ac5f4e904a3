"""The look before the work: what it finds, what it refuses, and that it does nothing."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import SMALL_MODEL, digests, small_job
from tests.trainer.conftest import Finished
from trainer.config import PipelineJob
from trainer.errors import ConfigError, CorpusError, DeviceError, PipelineError, TokenizerError
from trainer.places import FINAL
from trainer.plan import divide_batch, make_plan
from trainer.preflight import preflight
from trainer.preparation import PreparedData, prepare, shard_manifests
from trainer.progress import silent
from trainer.runtime import check_devices, planned_ranks
from trainer.storage import Store


def refused(job: PipelineJob, kind: type[PipelineError]) -> str:
    with pytest.raises(kind) as caught:
        preflight(job, silent())
    return str(caught.value)


def test_before_the_text_is_tokenized_counts_are_estimates(raw: Path, tmp_path: Path) -> None:
    found = preflight(small_job(raw, tmp_path / "store"), silent())
    assert found.plan is None
    code, docs = found.corpora
    assert (code.name, docs.name) == ("code", "docs")
    assert (code.files, docs.files) == (len(list((raw / "code").iterdir())), 1)
    assert docs.raw_bytes == (raw / "docs.jsonl").stat().st_size
    assert (code.tokens, code.documents) == (None, None)
    assert found.about_steps == 6
    assert found.about_windows == (code.raw_bytes // 4 + docs.raw_bytes // 4) // 32


def test_once_it_is_tokenized_counts_are_exact(raw: Path, stocked: Path, data: PreparedData) -> None:
    job = small_job(raw, stocked)
    found = preflight(job, silent())
    assert found.plan == make_plan(job.training, shard_manifests(Store(str(stocked)), data), 1)
    assert (found.about_windows, found.about_steps) == (found.plan.windows, found.plan.total_steps)
    for corpus, planned in zip(found.corpora, found.plan.corpora, strict=True):
        assert corpus.tokens == planned.tokens + planned.validation_tokens
    assert found.vocab_size == 384


def test_parameters_are_those_of_the_model_that_is_trained(raw: Path, stocked: Path, finished: Finished) -> None:
    from trainer.models import load_model

    found = preflight(small_job(raw, stocked), silent())
    model = load_model(finished.store / finished.run / FINAL)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.about_memory_bytes > 16 * found.parameters
    assert found.about_disk_bytes > 12 * found.parameters


def test_nothing_is_left_behind_but_the_notes_about_raw_files(raw: Path, tmp_path: Path, stocked: Path) -> None:
    preflight(small_job(raw, tmp_path / "new"), silent())
    assert digests(tmp_path / "new") == {}
    before = digests(stocked, "tokenizers", "shards")
    preflight(small_job(raw, stocked), silent())
    assert digests(stocked, "tokenizers", "shards") == before
    assert sorted(path.name for path in stocked.iterdir()) == [".staging", "cache", "shards", "tokenizers"]


def test_a_warm_up_beyond_the_epochs_is_refused_as_soon_as_their_steps_are_known(raw: Path, stocked: Path) -> None:
    job = small_job(raw, stocked, training__max_steps=None, training__epochs=1, training__warmup_steps=100_000)
    assert "training.warmup_steps is 100000, but the whole run has" in refused(job, ConfigError)


def test_a_batch_that_the_ranks_do_not_divide_is_refused(raw: Path, tmp_path: Path) -> None:
    training = small_job(raw, tmp_path, training__global_batch=9).training
    with pytest.raises(ConfigError, match="global_batch 9 does not divide among 2 ranks"):
        divide_batch(training, 2)
    training = small_job(raw, tmp_path, training__micro_batch=4).training
    with pytest.raises(ConfigError, match="8 on 4 ranks is 2 samples each, which micro_batch 4 does not divide"):
        divide_batch(training, 4)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2 or torch.cuda.is_available(), reason="asks for two ranks on the CPU")
def test_ranks_and_batch_are_looked_at_together(raw: Path, stocked: Path) -> None:
    job = small_job(raw, stocked, training__processes=2, training__global_batch=9)
    assert "9 does not divide among 2 ranks" in refused(job, ConfigError)
    found = preflight(small_job(raw, stocked, training__processes=2), silent())
    assert found.plan is not None
    assert (found.ranks, found.plan.micro_batch) == (2, 4)


def test_a_corpus_smaller_than_a_window_is_refused_once_its_tokens_are_counted(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("a few words\n" * 3)
    corpora = [{"name": "small", "paths": [f"{tmp_path}/small.txt"]}]
    job = small_job(raw, tmp_path / "store", data__corpora=corpora, data__validation_fraction=0.0)
    prepare(job.preparation(), silent())
    message = refused(job, CorpusError)
    assert "corpus 'small' is smaller than one window: its largest shard has" in message
    assert "training.context is 32; use more text, fewer shards or a smaller context" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_devices_that_a_machine_lacks_are_refused() -> None:
    cores = len(os.sched_getaffinity(0))
    check_devices("fp32", cores)
    check_devices("bf16", None)
    with pytest.raises(DeviceError, match="fp16, but this machine has no GPU; use fp32 or bf16 here"):
        check_devices("fp16", None)
    with pytest.raises(DeviceError, match=f"training.processes is {cores + 1}, but this machine has {cores} cores"):
        check_devices("fp32", cores + 1)
    assert planned_ranks(None) == 1
    assert planned_ranks(3) == 3


@pytest.fixture
def pretrained(finished: Finished, tmp_path: Path) -> Path:
    """A model folder with its tokenizer, as an earlier run published it."""
    return Path(shutil.copytree(finished.store / finished.run / FINAL, tmp_path / "pretrained"))


def continued(raw: Path, store: Path, pretrained: Path, **changes: Any) -> PipelineJob:
    """A job that trains an earlier run's model further."""
    taken = {"path": str(pretrained / "tokenizer.json")}
    return small_job(raw, store, **{"model": {"pretrained": str(pretrained)}, "data__tokenizer": taken, **changes})


def test_an_earlier_runs_model_may_be_trained_further_with_its_tokenizer(raw: Path, tmp_path: Path, pretrained: Path) -> None:
    found = preflight(continued(raw, tmp_path / "store", pretrained), silent())
    assert found.vocab_size == 384


def test_a_pretrained_model_with_another_tokenizer_is_refused_with_the_right_one(
    raw: Path, stocked: Path, pretrained: Path, tmp_path: Path
) -> None:
    trained = continued(raw, stocked, pretrained, data__tokenizer={"vocab_size": 300})
    other = prepare(trained.preparation(), silent()).tokenizer
    taken = {"path": f"{stocked}/{other.key}/tokenizer.json"}
    for job in (trained, continued(raw, tmp_path / "new", pretrained, data__tokenizer=taken)):
        message = refused(job, TokenizerError)
        assert f"not that of the pretrained model '{pretrained}'" in message
        assert f"set data.tokenizer.path to '{pretrained / 'tokenizer.json'}'" in message


def test_shards_of_another_tokenizer_are_refused(raw: Path, stocked: Path, data: PreparedData) -> None:
    other = prepare(small_job(raw, stocked, data__tokenizer={"vocab_size": 300}).preparation(), silent())
    with pytest.raises(TokenizerError, match=r"was tokenized with .*, not with .*; prepare the data anew"):
        shard_manifests(Store(str(stocked)), PreparedData(tokenizer=other.tokenizer, shards=data.shards))


def test_a_tokenizer_to_train_larger_than_the_models_vocabulary_is_refused(raw: Path, tmp_path: Path) -> None:
    job = small_job(raw, tmp_path / "store", model__config={**SMALL_MODEL, "vocab_size": 300})
    assert "the tokenizer's largest id is 383, but the model has 300 embeddings" in refused(job, TokenizerError)
