"""Masked language models: the same training as a plain loop under the same masks, which nothing but seed and sample
decide.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForMaskedLM

from tests.support import cpu_runtime, curve, rate_at, records, small_job
from tests.tiny_models import tiny_config
from tests.trainer.made import prepare
from tests.trainer.plain_loops import small_adamw, train_plainly
from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.kind import kind_of
from trainer.kinds.pretraining.workload import MaskedPretraining
from trainer.models.causal import build_model, resolve_config
from trainer.models.tokenizer import load_tokenizer
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.records.plans import PreparedData
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.identity import data_keys

STEPS = 20
BERT = {**tiny_config("bert"), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MASKED: dict[str, Any] = {
    "data__tokenizer": {"vocab_size": 384, "mask_token": "<mask>", "name": "masked"}, "model__config": BERT,
    "training__objective": "masked", "training__max_steps": STEPS, "training__learning_rate": 3e-3,
    "evaluation__prompts": [],
}  # fmt: skip


def masked_job(raw: Path, store: Path, **changes: Any) -> PipelineJob:
    return small_job(raw, store, **{**MASKED, **changes})


@pytest.fixture(scope="module")
def made(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreparedData]:
    """A store with a tokenizer that has a mask token, and shards; not to be written to."""
    store = tmp_path_factory.mktemp("masked") / "store"
    return store, prepare(masked_job(raw, store).preparation(), silent())


def train_here(raw: Path, store: Path, data: PreparedData, **changes: Any) -> str:
    cpu_runtime()
    return train(masked_job(raw, store, **changes), silent(), data).key


def rows(workload: MaskedPretraining, number: int, rank: int) -> list[Any]:
    batch = workload.read_batch(number, rank)
    return [torch.cat([inputs[name] for inputs in batch.micro_batches]).tolist() for name in ("input_ids", "labels")]


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_follow_from_seed_and_sample_whatever_the_ranks(
    raw: Path, made: tuple[Path, PreparedData], whole_words: bool
) -> None:
    job = masked_job(raw, made[0], training__masking={"whole_words": whole_words})
    alone, two = (MaskedPretraining(job, Store(str(made[0])), made[1], ranks) for ranks in (1, 2))
    for number in (0, 1, 1000):
        ids, labels = rows(alone, number, 0)
        shares = [rows(two, number, rank) for rank in (0, 1)]
        assert [ids, labels] == [[*shares[0][part], *shares[1][part]] for part in (0, 1)]
        assert alone.read_batch(number, 0).targets == two.read_batch(number, 1).targets
        assert sum(label != -100 for row in labels for label in row) == alone.read_batch(number, 0).targets == 8 * 5
    other = MaskedPretraining(masked_job(raw, made[0], training__seed=1), Store(str(made[0])), made[1], 1)
    assert rows(other, 0, 0) != rows(alone, 0, 0)


def test_a_model_is_trained_as_in_a_plain_loop_under_the_same_masks(
    raw: Path, store: Path, made: tuple[Path, PreparedData]
) -> None:
    data = made[1]
    run = train_here(raw, store, data)
    job, here = masked_job(raw, store), Store(str(store))
    workload = MaskedPretraining(job, here, data, 1)
    tokenizer = load_tokenizer(here, data.tokenizer.key)
    config = resolve_config(job.model, tokenizer, 32, masked=True)
    model = build_model(job.model, config, job.training.seed, AutoModelForMaskedLM)
    spared = [p for name, p in model.named_parameters() if p.ndim < 2 or "LayerNorm" in name]
    decayed = [p for p in model.parameters() if all(p is not each for each in spared)]

    def loss_at(step: int) -> torch.Tensor:
        (inputs,) = workload.read_batch(step, 0).micro_batches
        logits = model(input_ids=inputs["input_ids"]).logits
        return F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100)

    optimizer = small_adamw(decayed, spared)
    schedule = LambdaLR(optimizer, lambda step: rate_at(step, STEPS))
    losses = train_plainly(optimizer, schedule, map(loss_at, range(STEPS)))
    assert [loss for _, loss, _, _ in curve(store)] == pytest.approx(losses, abs=1e-4)
    assert losses[-1] < losses[0] - 0.4, "it learns"
    final = AutoModelForMaskedLM.from_pretrained(store / run / "final")
    assert final.config.architectures == ["BertForMaskedLM"]
    for name, value in model.state_dict().items():
        assert torch.allclose(final.state_dict()[name], value, atol=1e-4), name


def test_the_finished_model_is_measured_on_masks_that_never_change(
    raw: Path, store: Path, made: tuple[Path, PreparedData]
) -> None:
    changes = {"evaluation__during_training": None, "training__max_steps": 6}
    runs = [train_here(raw, store, made[1], **changes, **more) for more in ({}, {"training__seed": 3})]
    found = [evaluate_run(masked_job(raw, store, **changes, training__seed=seed), run, silent(), data_keys(made[1]))
             for seed, run in zip((0, 3), runs, strict=True)]  # fmt: skip
    last = records(store, "evaluation", runs[0])[-1]
    figures, counts = found[0].judged.figures, found[0].judged.counts
    assert last["loss"] == pytest.approx(figures["loss"], abs=1e-6)
    assert last["accuracy"] == pytest.approx(figures["accuracy"])
    assert 0 < figures["accuracy"] < 1 and "bits_per_byte" not in figures and counts == found[1].judged.counts
    assert found[0].figures().keys() == {"loss", "perplexity", "accuracy"}
    assert found[0].measured_on == found[1].measured_on
    page = Store(str(store)).read_bytes(make_report(Store(str(store)), runs[0]).key).decode()
    assert "nats a hidden token" in page and "hidden tokens" in page
    assert f"Finished model on {counts['tokens']:,} hidden tokens: " in page
    assert "pipeline_tag: fill-mask" in (store / runs[0] / "final" / "README.md").read_text()


def test_a_tokenizer_without_a_mask_token_is_refused_before_anything_is_done(
    raw: Path, stocked: Path, data: PreparedData, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"data__tokenizer": {"vocab_size": 384}}
    said = (
        r"needs a mask token, but the tokenizer has none of the mask tokens \[MASK\] and <mask>; its special tokens "
        r"are <\|end"
    )
    with pytest.raises(TokenizerError, match=said):
        kind_of(job := masked_job(raw, stocked, **values)).preflight(job, silent())
    with pytest.raises(TokenizerError, match=r"of the tokenizer to train is None; set it to '<mask>'"):
        kind_of(job := masked_job(raw, tmp_path / "new", **values)).preflight(job, silent())
    with pytest.raises(TokenizerError, match=r"has no special token '<hidden>'"):
        kind_of(job := masked_job(raw, stocked, **values, training__masking={"mask_token": "<hidden>"})).preflight(
            job, silent()
        )
    end, shown = {"mask_token": "<|endoftext|>"}, {"mask_share": 0, "random_share": 0}
    with pytest.raises(TokenizerError, match=r"mask token '<\|endoftext\|>' also ends documents"):
        kind_of(job := masked_job(raw, stocked, **values, training__masking=end)).preflight(job, silent())
    with pytest.raises(ConfigError, match="are both 0, so the model would see every token that it predicts"):
        kind_of(job := masked_job(raw, stocked, **values, training__masking=shown)).preflight(job, silent())
    with pytest.raises(ConfigError, match=r"data.tokenizer.mask_token is <\|endoftext\|>, which ends documents"):
        kind_of(job := masked_job(raw, tmp_path / "new", data__tokenizer={"vocab_size": 384, **end})).preflight(
            job, silent()
        )


def test_a_family_that_reads_from_left_to_right_is_refused(raw: Path, store: Path) -> None:
    job = masked_job(raw, store, model__config={"model_type": "gpt2"})
    with pytest.raises(ConfigError, match=r"no masked language model of model_type 'gpt2'; use a bidirectional one"):
        kind_of(job).preflight(job, silent())


def test_a_model_that_does_not_see_what_follows_is_refused(raw: Path, store: Path) -> None:
    job = masked_job(raw, store, model__config={**BERT, "is_decoder": True})
    with pytest.raises(ConfigError, match=r"does not see the tokens after a hidden one; set is_decoder to false"):
        kind_of(job).preflight(job, silent())


def test_the_preflight_takes_what_is_right(raw: Path, store: Path, tmp_path: Path) -> None:
    for place in (store, tmp_path / "new"):
        job = masked_job(raw, place)
        assert kind_of(job).preflight(job, silent()).parameters > 0
