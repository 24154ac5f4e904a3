"""Dropout on a processor: shares and independence by statistics, one key a call, and attention as SDPA computes it."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.models.dropout import LEVELS, Dropout, attend, draw_fast, drop, kept_by

ALPHA = 1e-4
"""Of tests that fail by chance: draws are seeded, so they pass always or never."""


def kept(*shape: int, rate: float = 0.1, seed: int = 0) -> np.ndarray:
    torch.manual_seed(seed)
    return (drop(torch.ones(shape), rate) != 0).numpy()


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5, 0.9])
def test_each_value_is_dropped_at_the_rate_and_what_is_expected_stays(rate: float) -> None:
    torch.manual_seed(0)
    values = drop(torch.ones(4_000_000), rate)
    share = int((values == 0).sum())
    assert stats.binomtest(share, 4_000_000, round(rate * LEVELS) / LEVELS).pvalue > ALPHA
    assert abs(round(rate * LEVELS) / LEVELS - rate) < 1 / LEVELS
    assert values.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=2e-4)
    assert float(values.double().mean()) == pytest.approx(1.0, abs=5 * (rate / (1 - rate) / 4e6) ** 0.5)


def test_neighbours_rows_and_calls_are_independent() -> None:
    each = kept(1000, 4096)
    torch.manual_seed(0)
    first, second = ((drop(torch.ones(1000, 4096), 0.1) != 0).numpy() for _ in range(2))
    assert np.array_equal(first, each)
    for one, other in [(each[:, lag:], each[:, :-lag]) for lag in (1, 2, 3, 4, 8, 64)] + [
        (each[1:], each[:-1]), (first, second), (each, kept(1000, 4096, seed=1)),
    ]:  # fmt: skip
        pairs = np.bincount((2 * one.astype(int) + other).ravel(), minlength=4).reshape(2, 2)
        assert stats.chi2_contingency(pairs, correction=False).pvalue > ALPHA


def test_runs_of_dropped_values_are_as_long_as_by_chance() -> None:
    places = np.flatnonzero(~kept(4_000_000))
    gaps = np.minimum(np.diff(places), 60)
    rate = round(0.1 * LEVELS) / LEVELS
    lengths = np.arange(1, 61)
    expected = stats.geom.pmf(lengths, rate)
    expected[-1] = stats.geom.sf(59, rate)
    assert stats.chisquare(np.bincount(gaps, minlength=61)[1:], expected * len(gaps)).pvalue > ALPHA


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0,)])
def test_any_number_of_values(shape: tuple[int, ...]) -> None:
    assert kept_by(torch.tensor(7), torch.ones(shape), LEVELS // 2).shape == shape
    torch.library.opcheck(kept_by, (torch.tensor(7), torch.ones(shape), 6554))


def test_nothing_and_all_may_be_dropped_and_outside_of_training_nothing_is() -> None:
    values = torch.randn(10)
    assert drop(values, 0.0) is values
    assert not drop(values, 1.0).any()
    assert Dropout(0.5).eval()(values) is values


def test_the_generator_alone_decides_in_the_backward_pass_too() -> None:
    layer, values = Dropout(0.3), torch.randn(64, 64)

    def gradient(again: bool) -> torch.Tensor:
        torch.manual_seed(3)
        inputs = values.clone().requires_grad_()
        told: Any = checkpoint(layer, inputs, use_reentrant=False) if again else layer(inputs)
        told.square().sum().backward()
        assert inputs.grad is not None
        return inputs.grad

    assert torch.equal(gradient(False), gradient(True))


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_it_drops_the_same_values() -> None:
    class Branches(nn.Module):
        """Three dropouts of the same values at the same rate, as adapters have them, one of them computed again."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(Dropout(0.3), nn.Linear(32, 32)) for _ in range(3))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            first, second, third = self.layers
            again: Any = checkpoint(third, values, use_reentrant=False)
            total: torch.Tensor = first(values) + 2 * second(values) + 3 * again
            return total

    layers, values = Branches(), torch.randn(64, 32)

    def computed(module: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layers.zero_grad()
        told = module(values)
        told.square().sum().backward()
        return [told, *(each.grad.clone() for each in layers.parameters() if each.grad is not None)]

    compiled = torch.compile(layers, options={"fallback_random": True})
    for one, other in zip(computed(layers), computed(compiled), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-3)


def test_a_model_gets_it_for_plain_dropout_alone() -> None:
    class Own(nn.Dropout):
        pass

    model = nn.ModuleDict({"plain": nn.Dropout(0.2), "own": Own(0.2), "inner": nn.Sequential(nn.Dropout(0.4))})
    model.eval()
    draw_fast(model)
    assert [type(each) for each in model.modules() if isinstance(each, nn.Dropout)] == [Dropout, Own, Dropout]
    assert (model["plain"].p, model["plain"].training) == (0.2, False)


MASKS = {
    "none": None,
    "bool": torch.ones(1, 1, 24, 24, dtype=torch.bool).tril(3),
    "added": torch.zeros(2, 1, 24, 24).masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(2), -1e9),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_whose_weights_are_all_kept_is_that_of_sdpa(
    mask: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 24, 8), torch.randn(2, 2, 24, 8), torch.randn(2, 2, 24, 8)
    module = nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    told = {"scaling": 0.4, "is_causal": causal}
    expected, _ = sdpa_attention_forward(module, query, key, value, MASKS[mask], **told)
    monkeypatch.setattr("trainer.models.dropout.drop", lambda weights, rate: weights)
    found, _ = attend(module, query, key, value, MASKS[mask], dropout=0.1, **told)  # type: ignore[arg-type]
    assert torch.allclose(found, expected, atol=1e-5)


def test_attention_drops_its_weights_at_the_rate() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 256, 16), torch.randn(1, 4, 256, 16), torch.eye(256).expand(1, 4, 256, 256)
    found = attend(nn.Module(), query, key, value, None, dropout=0.25)[0].transpose(1, 2)
    weights = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    seen = torch.ones(256, 256, dtype=torch.bool).tril().expand_as(found)
    assert stats.binomtest(int((found[seen] == 0).sum()), int(seen.sum()), 0.25).pvalue > ALPHA
    assert not found[~seen].any()
    assert torch.allclose(found[found != 0], (weights / 0.75)[found != 0], rtol=1e-3)
