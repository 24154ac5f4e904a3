"""The step plan: totals from the data's size and the settings, and refusal of what cannot be."""

import logging
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support import small_job
from trainer.common.errors import ConfigError, CorpusError
from trainer.config.training import TrainingConfig
from trainer.data.step_plan import check_patience, divide_batch, make_plan
from trainer.kinds.pretraining.kind import plan
from trainer.records.plans import Plan, PreparedData, TuningPlan
from trainer.store.manifest import ArtifactRef, Manifest, make_manifest

SIZES = {"code": [700_000, 650_000, 90], "prose": [80_000], "notes": [3000, 2900]}


def shards_of(name: str, sizes: list[int], held_out: int = 7) -> Manifest:
    """The manifest of a shard set with shards of these token counts."""
    totals = {"documents": 10, "tokens": sum(sizes), "validation_tokens": held_out}
    return make_manifest("shards", "name", [], {"corpus": name, "shard_tokens": sizes, "totals": totals})


def settings(**changes: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"epochs": 2, "context": 128, "global_batch": 8, **changes})


def test_3668_pairs_in_batches_of_8_for_3_epochs_are_1377_steps() -> None:
    plan = make_plan(settings(epochs=3, context=100, global_batch=8), [shards_of("mrpc", [3668 * 100])], ranks=1)
    assert (plan.windows, plan.steps_per_epoch, plan.total_steps) == (3668, 459, 1377)


def test_one_of_each_is_described_in_the_singular() -> None:
    plan = make_plan(settings(epochs=1, context=8, global_batch=1), [shards_of("a", [8])], ranks=1)
    assert plan.describe_steps() == "1 window, 1 step per epoch; 1 step of 1 window (1 rank x 1 x 1), 8 tokens"
    tuning = TuningPlan(examples=1, validation_examples=1, **plan.model_dump(include={*Plan.model_fields}))
    assert tuning.describe_steps() == "1 example, 1 step per epoch; 1 step of 1 example (1 rank x 1 x 1)"
    assert tuning.describe_data("pairs") == "pairs: 1 example"


@pytest.mark.parametrize("stride", [None, 128, 64, 1])
@pytest.mark.parametrize("global_batch", [1, 8, 24, 10_000_000])
@pytest.mark.parametrize("epochs", [1, 5])
def test_total_steps_are_epochs_times_batches_rounded_up(epochs: int, global_batch: int, stride: int | None) -> None:
    training = settings(epochs=epochs, global_batch=global_batch, stride=stride)
    plan = make_plan(training, [shards_of(name, sizes) for name, sizes in SIZES.items()], ranks=1)
    step = stride or 128
    windows = sum(math.ceil((n - 128) / step) + 1 for sizes in SIZES.values() for n in sizes if n >= 128)
    assert plan.windows == windows == sum(corpus.windows for corpus in plan.corpora)
    assert plan.total_steps == epochs * math.ceil(windows / global_batch)
    assert plan.steps_per_epoch == math.ceil(windows / global_batch)
    assert plan.tokens_per_step == global_batch * 128
    assert plan.total_tokens == plan.total_steps * plan.tokens_per_step


def test_a_number_of_steps_can_be_given_instead_of_epochs() -> None:
    for steps in (77, 770):  # an epoch has 98
        plan = make_plan(settings(epochs=None, max_steps=steps), [shards_of("a", [100_000])], ranks=1)
        assert (plan.steps_per_epoch, plan.total_steps) == (98, steps)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_corpora_are_drawn_with_the_power_of_their_tokens(alpha: float) -> None:
    plan = make_plan(settings(alpha=alpha), [shards_of(name, sizes) for name, sizes in SIZES.items()], ranks=1)
    weights = {name: sum(sizes) ** alpha for name, sizes in SIZES.items()}
    for corpus in plan.corpora:
        assert corpus.probability == pytest.approx(weights[corpus.name] / sum(weights.values()))
        assert corpus.passes == pytest.approx(plan.total_steps * 8 * corpus.probability / corpus.windows)
    assert sum(corpus.probability for corpus in plan.corpora) == pytest.approx(1)


def test_a_corpus_of_which_little_is_read_does_not_seem_to_be_left_out() -> None:
    sets = [shards_of("little", [12_800]), shards_of("much", [50_000_000])]
    plan = make_plan(settings(epochs=None, max_steps=100, alpha=1.0), sets, ranks=1)
    little, much = plan.rows()
    assert (little["share of samples"], much["share of samples"]) == ("0.0256 %", "99.97 %")
    assert (little["passes"], much["passes"]) == ("0.00205", "0.00205")


def test_tokens_in_shards_shorter_than_a_window_are_reported_unused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plan = make_plan(settings(), [shards_of("code", SIZES["code"])], ranks=1)
    assert plan.corpora[0].unused_tokens == 90
    assert plan.corpora[0].tokens == 1_350_090
    assert "corpus code: 90 tokens unused, in shards shorter than one window" in caplog.text


def test_a_shard_of_exactly_one_window_is_used_whole(caplog: pytest.LogCaptureFixture) -> None:
    (corpus,) = make_plan(settings(), [shards_of("exact", [128, 128])], ranks=1).corpora
    assert (corpus.windows, corpus.unused_tokens, caplog.records) == (2, 0, [])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_packed_windows_give_a_step_the_tokens_that_its_draws_hold(alpha: float) -> None:
    tokens, packed = {"short": 9000, "long": 60_000}, {"short": [60, 40], "long": [500]}
    sets = [shards_of(name, [count]) for name, count in tokens.items()]
    plan = make_plan(settings(alpha=alpha, packing="best_fit"), sets, 1, packed)
    # 100 windows of 90 tokens on average, and 500 of 120, drawn 8 at a time.
    short = 9000**alpha / (9000**alpha + 60_000**alpha)
    assert plan.tokens_per_step == round(8 * (short * 90 + (1 - short) * 120))
    assert plan.fill == pytest.approx((9000 + 60_000) / (600 * 128))
    assert (plan.windows, plan.steps_per_epoch, plan.total_steps) == (600, 75, 150)
    assert [(corpus.windows, corpus.unused_tokens) for corpus in plan.corpora] == [(100, 0), (500, 0)]
    assert plan.corpora[0].passes == pytest.approx(150 * 8 * short / 100)


def test_a_corpus_without_a_document_to_pack_is_refused_by_name() -> None:
    sets = [shards_of("full", [1000]), shards_of("held-out", [0])]
    with pytest.raises(CorpusError, match="corpus 'held-out' has no document to train on"):
        make_plan(settings(packing="best_fit"), sets, 1, {"full": [9], "held-out": [0]})


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ((40, 40), None),
        ((40, 1), "no document of b is held out at data.validation_fraction 0.15: the loss over all corpora does not"),
        ((1, 0), "no document is held out at data.validation_fraction 0.15: the model is not evaluated"),
    ],
)
def test_corpora_without_held_out_text_are_told(
    held_out: tuple[int, int],
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = small_job(tmp_path, tmp_path / "store", evaluation__prompts=[])
    sets = [shards_of(name, [1000], tokens) for name, tokens in zip("ab", held_out, strict=True)]
    monkeypatch.setattr("trainer.data.step_plan.shard_manifests", lambda *_: sets)
    plan(job, PreparedData(tokenizer=ArtifactRef(key="tokenizers/t", fingerprint="t", size=1), shards=[]), 1)
    assert (said in caplog.text) if said else not caplog.records


def test_a_corpus_smaller_than_one_window_is_refused() -> None:
    with pytest.raises(
        CorpusError, match=r"'small' is smaller than one window: its largest shard has 127 tokens.* is 128; use"
    ):
        make_plan(settings(), [shards_of("big", [10_000]), shards_of("small", [127, 126])], ranks=1)
    assert make_plan(settings(), [shards_of("small", [128])], ranks=1).windows == 1


def test_a_warm_up_beyond_the_end_is_refused() -> None:
    data = [shards_of("a", [128 * 80])]
    assert make_plan(settings(warmup_steps=20), data, ranks=1).warmup_steps == 20
    with pytest.raises(ConfigError, match=r"warmup_steps is 21, but the whole run has 20 steps"):
        make_plan(settings(warmup_steps=21), data, ranks=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_decay_steps": 19}, "training.warmup_steps, num_decay_steps of .* are 21 steps .* whole run has 20$"),
        ({"num_decay_steps": 3, "num_stable_steps": 50}, "num_stable_steps and num_decay_steps .* 55 steps together"),
        ({"num_decay_steps": 3, "num_stable_steps": 5}, "whole run has 20, which leaves 10 with the learning rate 0"),
    ],
)
def test_a_decay_that_is_not_at_the_runs_end_is_refused(options: dict[str, int], said: str) -> None:
    data, wsd = [shards_of("a", [128 * 80])], {"schedule": "warmup_stable_decay", "warmup_steps": 2}
    with pytest.raises(ConfigError, match=said):
        make_plan(settings(**wsd, schedule_options=options), data, ranks=1)
    for fits in (
        {"num_decay_steps": 18},
        {"num_stable_steps": 15, "num_decay_steps": 3},
        {**options, "num_stable_steps": 5, "num_decay_steps": 2, "min_lr_ratio": 0.1},
    ):
        assert make_plan(settings(**wsd, schedule_options=fits), data, ranks=1).total_steps == 20


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "ranks", "expected"),
    [(8, None, 1, (8, 1)), (8, 2, 1, (2, 4)), (8, 2, 4, (2, 1)), (8, None, 4, (2, 1)), (24, 3, 2, (3, 4))],
)
def test_the_global_batch_is_micro_batch_times_ranks_times_accumulation(
    global_batch: int, micro_batch: int | None, ranks: int, expected: tuple[int, int]
) -> None:
    training = settings(global_batch=global_batch, micro_batch=micro_batch)
    assert divide_batch(training, ranks) == expected
    plan = make_plan(training, [shards_of("a", [10_000])], ranks)
    assert plan.micro_batch * plan.accumulation * plan.ranks == global_batch
    assert plan.tokens_per_step == global_batch * 128


@pytest.mark.parametrize(
    ("micro_batch", "ranks", "problem"),
    [
        (None, 3, "global_batch 8 does not divide among 3 ranks"),
        (4, 4, "global_batch 8 on 4 ranks is 2 samples each, which micro_batch 4 does not divide"),
    ],
)
def test_batches_that_do_not_divide_are_refused(micro_batch: int | None, ranks: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_plan(settings(micro_batch=micro_batch), [shards_of("a", [10_000])], ranks)


@pytest.mark.parametrize(
    ("best_by", "evaluate_every", "asks_every", "told"),
    [
        ("loss", None, 2, "3 times in all (at the end of each epoch and of the run)"),
        ("harness/tiny/acc", None, None, "3 times in all (at the end of each epoch and of the run)"),
        ("loss", 14, 2, "3 times in all (every 14 steps, at most)"),
        ("harness/tiny/acc", None, 14, "3 times in all (every 14 steps, at most)"),
        ("harness/tiny/acc", 14, 28, "3 times in all (every 14 and every 28 steps, at most)"),
        ("loss", 6, None, None),
        ("harness/tiny/acc", None, 6, None),
        ("harness/tiny/acc", 6, 14, None),
        ("harness/tiny/acc", 14, 6, None),
    ],
)
def test_early_stopping_is_refused_where_too_few_evaluations_have_the_figure_that_decides(
    best_by: str, evaluate_every: int | None, asks_every: int | None, told: str | None
) -> None:
    """Of 20 steps, in epochs of 7, with a patience of two."""
    job = small_job(
        Path("raw"), "store", training__early_stopping=2, training__evaluate_every=evaluate_every,
        evaluation__best_by=best_by, evaluation__harness={"tasks": ["tiny"], "every": asks_every},
    )  # fmt: skip
    with nullcontext() if told is None else pytest.raises(ConfigError, match=re.escape(f"is evaluated {told}")):
        check_patience(job, steps_per_epoch=7, total_steps=20)
