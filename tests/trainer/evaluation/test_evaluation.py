"""Held-out loss against a plain loop, and how little it depends on."""

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tests.trainer.shard_files import Arrays
from trainer.data.dataset import HeldOut, HeldOutWindows
from trainer.kinds.pretraining.measure import evaluate
from trainer.training.runtime import Runtime

CONTEXT = 8


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=CONTEXT, vocab_size=50)).eval()


def shards(*sizes: int) -> Arrays:
    draw = np.random.default_rng(sum(sizes))
    return Arrays(draw.integers(0, 50, size, dtype=np.uint16) for size in sizes)


TEXTS = {"one": shards(37, 1, 8, 9), "two": shards(20), "none": shards(0, 1)}


def held_out(max_windows: int | None = None) -> list[HeldOut]:
    return [HeldOut(name, texts, HeldOutWindows(texts.lengths, CONTEXT, max_windows)) for name, texts in TEXTS.items()]


def losses_one_by_one(model: PreTrainedModel, texts: Sequence[np.ndarray]) -> list[float]:
    """-log p of every token but each shard's first, one at a time, from the tokens before it in its window."""
    found = []
    for shard in texts:
        ids = torch.from_numpy(shard.astype(np.int64))
        for place in range(1, len(ids)):
            start = (place - 1) // (CONTEXT - 1) * (CONTEXT - 1)
            with torch.no_grad():
                logits_V = model(input_ids=ids[None, start:place]).logits[0, -1]
            found.append(-torch.log_softmax(logits_V.double(), dim=-1)[ids[place]].item())
    return found


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_scores_equal_a_plain_loop_over_every_token_whatever_the_batch(
    model: PreTrainedModel, batch: int, runtime: Runtime
) -> None:
    scores = evaluate(model, held_out(), CONTEXT, batch, runtime)
    assert list(scores.groups) == ["one", "two"], "a corpus without held-out text has no score"
    expected = {name: losses_one_by_one(model, texts) for name, texts in TEXTS.items()}
    for name, score in scores.groups.items():
        assert score.counts["tokens"] == len(expected[name])
        assert score.figures["loss"] == pytest.approx(math.fsum(expected[name]) / len(expected[name]), rel=1e-5)
    every = [loss for losses in expected.values() for loss in losses]
    assert scores.total.counts["tokens"] == len(every) == (36 + 0 + 7 + 8) + 19
    assert scores.total.figures["loss"] == pytest.approx(math.fsum(every) / len(every), rel=1e-5)


def test_bits_per_byte_are_the_bits_of_all_tokens_over_their_bytes(model: PreTrainedModel, runtime: Runtime) -> None:
    token_bytes = np.arange(50) % 7 + 0.5
    scores = evaluate(model, [each._replace(token_bytes=token_bytes) for each in held_out()], CONTEXT, 3, runtime)
    bits, text_bytes = 0.0, 0.0
    for name, texts in list(TEXTS.items())[:2]:
        own_bits = math.fsum(losses_one_by_one(model, texts)) / math.log(2)
        own_bytes = math.fsum(token_bytes[token] for shard in texts for token in shard[1:])
        assert scores.groups[name].figures["bits_per_byte"] == pytest.approx(own_bits / own_bytes, rel=1e-5)
        bits, text_bytes = bits + own_bits, text_bytes + own_bytes
    assert scores.total.figures["bits_per_byte"] == pytest.approx(bits / text_bytes, rel=1e-5)
    assert scores.total.counts["text_bytes"] == round(text_bytes)


@pytest.mark.parametrize("context", [2, 3, 7, 100])
@pytest.mark.parametrize("most", [None, 1, 5, 12, 10_000])
def test_windows_are_those_of_a_plain_list(context: int, most: int | None) -> None:
    lengths = [0, 1, 37, 2, 0, 8, 100, 9, 1]
    plain = [(shard, start) for shard, length in enumerate(lengths) for start in range(0, length - 1, context - 1)]
    if most is not None and len(plain) > most:
        plain = [plain[int(place)] for place in np.linspace(0, len(plain) - 1, most).round()]
    windows = HeldOutWindows(lengths, context, most)
    assert (len(windows), windows[:], windows.used) == (len(plain), plain, sorted({shard for shard, _ in plain}))
    assert [window for place in range(0, len(plain) + 3, 3) for window in windows[place : place + 3]] == plain


@pytest.mark.parametrize("most", [None, 256])
def test_millions_of_windows_take_no_memory(most: int | None) -> None:
    tracemalloc.start()
    try:
        windows = HeldOutWindows([255_000_000] * 18, 256, most)
        assert len(windows[100:116]) == 16
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert len(windows) == (most or 18_000_000)


def test_limited_windows_are_scored_alone(model: PreTrainedModel, runtime: Runtime) -> None:
    limited = held_out(max_windows=2)
    scores = evaluate(model, limited, CONTEXT, 16, runtime)
    assert {name: score.counts["windows"] for name, score in scores.groups.items()} == {"one": 2, "two": 2}
    assert limited[0].windows[:1] == [(0, 0)]
    alone = evaluate(
        model, [HeldOut("one", TEXTS["one"], HeldOutWindows([CONTEXT], CONTEXT, None))], CONTEXT, 1, runtime
    )
    one = TEXTS["one"][0][:CONTEXT]
    assert alone.total.figures["loss"] == pytest.approx(
        math.fsum(losses_one_by_one(model, [one])) / (CONTEXT - 1), rel=1e-5
    )


def test_perplexity_is_the_exponential_of_the_loss(model: PreTrainedModel, runtime: Runtime) -> None:
    scores = evaluate(model, held_out(), CONTEXT, 16, runtime)
    for score in [*scores.groups.values(), scores.total]:
        assert score.figures["perplexity"] == math.exp(score.figures["loss"])


def test_evaluation_leaves_the_model_in_the_mode_it_was_in_and_uses_no_dropout(
    model: PreTrainedModel, runtime: Runtime
) -> None:
    expected = evaluate(model, held_out(), CONTEXT, 16, runtime)
    assert not model.training
    model.train()
    try:
        assert evaluate(model, held_out(), CONTEXT, 16, runtime) == expected
        assert model.training
    finally:
        model.eval()


def test_evaluation_counts_every_window_once(model: PreTrainedModel, runtime: Runtime) -> None:
    counted: list[int] = []
    scores = evaluate(model, held_out(), CONTEXT, 3, runtime, counted.append)
    assert sum(counted) == scores.total.counts["windows"] == sum(len(corpus.windows) for corpus in held_out())


def test_a_model_that_diverged_scores_not_a_number(model: PreTrainedModel, runtime: Runtime) -> None:
    broken: Any = GPT2LMHeadModel(model.config)
    with torch.no_grad():
        broken.transformer.ln_f.weight.fill_(math.nan)
    scores = evaluate(broken, held_out(), CONTEXT, 16, runtime)
    assert math.isnan(scores.total.figures["loss"])
