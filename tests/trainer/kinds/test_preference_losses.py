"""Losses and rewards of preference tuning, against the papers' formulas written plainly for one pair at a time."""

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trainer.kinds.preference.job import PreferenceTrainingConfig
from trainer.kinds.preference.workload import LOSSES, rewards

Of = tuple[float, float]
"""Of the chosen and the rejected answer."""

TOKENS = torch.tensor([[1.0, 1.0], [7.0, 3.0], [40.0, 90.0], [12.0, 12.0], [3.0, 400.0], [60.0, 2.0]])
PAIRS = len(TOKENS)


def minus_log_sigmoid(value: float) -> float:
    return float(np.logaddexp(0, -value))


def plain_dpo(sums: Of, was: Of, tokens: Of, beta: float, label_smoothing: float = 0.0) -> float:
    margin = beta * (sums[0] - was[0]) - beta * (sums[1] - was[1])
    return (1 - label_smoothing) * minus_log_sigmoid(margin) + label_smoothing * minus_log_sigmoid(-margin)


def plain_ipo(sums: Of, was: Of, tokens: Of, beta: float) -> float:
    chosen, rejected = ((one - other) / length for one, other, length in zip(sums, was, tokens, strict=True))
    return (chosen - rejected - 0.5 / beta) ** 2


def plain_simpo(sums: Of, was: Of, tokens: Of, beta: float, gamma: float) -> float:
    return minus_log_sigmoid(beta / tokens[0] * sums[0] - beta / tokens[1] * sums[1] - gamma)


def plain_orpo(sums: Of, was: Of, tokens: Of, beta: float) -> float:
    chosen, rejected = (math.exp(each / length) for each, length in zip(sums, tokens, strict=True))
    ratio = (chosen / (1 - chosen)) / (rejected / (1 - rejected))
    return -math.log(chosen) - beta * math.log(ratio / (1 + ratio))


CASES: list[tuple[Callable[..., float], dict[str, Any]]] = [
    (plain_dpo, {"beta": 0.1}),
    (plain_dpo, {"beta": 0.7, "label_smoothing": 0.1}),
    (plain_ipo, {"beta": 0.1}),
    (plain_ipo, {"beta": 3.0}),
    (plain_simpo, {"beta": 2.0, "gamma": 1.0}),
    (plain_simpo, {"beta": 2.5, "gamma": 0.0}),
    (plain_orpo, {"beta": 0.1}),
    (plain_orpo, {"beta": 1.0}),
]
"""Formulas, and what they are given beside log-probabilities."""

each_case = pytest.mark.parametrize(("formula", "settings"), CASES)


def training(formula: Callable[..., float], settings: dict[str, Any]) -> PreferenceTrainingConfig:
    return PreferenceTrainingConfig(loss=formula.__name__.removeprefix("plain_"), max_steps=1, **settings)


def test_each_loss_that_may_be_asked_for_is_there_and_has_a_formula_here() -> None:
    asked = get_args(PreferenceTrainingConfig.model_fields["loss"].annotation)
    assert asked == tuple(LOSSES) and {formula.__name__ for formula, _ in CASES} == {f"plain_{loss}" for loss in asked}


def log_probabilities(seed: int) -> torch.Tensor:
    """Of tokens from very likely to unlikely ones, summed over answers; of shape [PAIRS, 2], float64."""
    means = np.random.default_rng(seed).uniform(-4, -0.01, (PAIRS, 2))
    return torch.from_numpy(means) * TOKENS


def by_formula(
    formula: Callable[..., float], settings: dict[str, Any], sums: torch.Tensor, was: torch.Tensor
) -> NDArray[np.float64]:
    pairs = zip(sums.tolist(), was.tolist(), TOKENS.tolist(), strict=True)
    return np.array([formula(*pair, **settings) for pair in pairs])


@each_case
def test_a_loss_is_that_of_its_paper(formula: Callable[..., float], settings: dict[str, Any]) -> None:
    sums, was, how = log_probabilities(1), log_probabilities(2), training(formula, settings)
    expected = by_formula(formula, settings, sums, was)
    assert LOSSES[how.loss](sums, was, TOKENS, how).numpy() == pytest.approx(expected, rel=1e-10)
    single = LOSSES[how.loss](sums.float(), was.float(), TOKENS, how)
    assert single.dtype == torch.float32 and single.numpy() == pytest.approx(expected, rel=2e-5, abs=2e-5)


@each_case
def test_a_gradient_is_that_of_the_formula(formula: Callable[..., float], settings: dict[str, Any]) -> None:
    sums, was, how = log_probabilities(3).requires_grad_(), log_probabilities(4), training(formula, settings)
    assert torch.autograd.gradcheck(lambda sums: LOSSES[how.loss](sums, was, TOKENS, how), sums)
    LOSSES[how.loss](sums, was, TOKENS, how).sum().backward()
    step = 1e-5
    for answer in (0, 1):
        aside = torch.zeros(2).double()
        aside[answer] = step
        above, below = (by_formula(formula, settings, sums.detach() + sign * aside, was) for sign in (1, -1))
        assert sums.grad is not None
        assert sums.grad[:, answer].numpy() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-8)


@each_case
def test_better_answers_have_the_greater_reward_and_less_loss(
    formula: Callable[..., float], settings: dict[str, Any]
) -> None:
    sums, was, how = log_probabilities(5), log_probabilities(6), training(formula, settings)
    got = rewards(sums, was, TOKENS, how)
    means = {"dpo": sums - was, "ipo": (sums - was) / TOKENS, "simpo": sums / TOKENS, "orpo": sums / TOKENS}
    assert got.numpy() == pytest.approx(settings["beta"] * means[how.loss].numpy(), rel=1e-12)
    margin = (got[:, 0] - got[:, 1]).tolist()
    of_margin = {
        "dpo": lambda each: plain_dpo((each, 0), (0, 0), (1, 1), 1.0, how.label_smoothing),
        "ipo": lambda each: ((each - 0.5) / how.beta) ** 2,
        "simpo": lambda each: minus_log_sigmoid(each - settings["gamma"]),
    }
    if how.loss in of_margin:
        expected = [of_margin[how.loss](each) for each in margin]
        assert LOSSES[how.loss](sums, was, TOKENS, how).tolist() == pytest.approx(expected, rel=1e-10)


def one_pair(how: PreferenceTrainingConfig, sums: Of, tokens: Of, was: Of = (0.0, 0.0)) -> tuple[float, list[float]]:
    """The loss of a pair in float32, as models are trained, and its gradient."""
    given = torch.tensor([sums], requires_grad=True)
    loss = LOSSES[how.loss](given, torch.tensor([was]), torch.tensor([tokens]), how)
    loss.sum().backward()
    assert given.grad is not None
    return loss.item(), given.grad[0].tolist()


def test_answers_of_equal_rewards_lose_what_the_formulas_begin_at() -> None:
    dpo = training(plain_dpo, {"beta": 0.1})
    smoothed = training(plain_dpo, {"beta": 0.1, "label_smoothing": 0.2})
    ipo = training(plain_ipo, {"beta": 0.25})
    simpo, orpo = training(plain_simpo, {"beta": 2.0, "gamma": 1.0}), training(plain_orpo, {"beta": 0.1})
    likely, lengths = (-30.0, -90.0), (10.0, 30.0)
    for how, gradient in ((dpo, [-0.05, 0.05]), (smoothed, [-0.05 * 0.6, 0.05 * 0.6])):
        assert one_pair(how, likely, lengths, was=likely) == (pytest.approx(math.log(2)), pytest.approx(gradient))
    assert one_pair(ipo, likely, lengths, was=likely) == (4.0, pytest.approx([-4 / 10, 4 / 30]))
    assert one_pair(simpo, likely, lengths)[0] == pytest.approx(math.log1p(math.e))
    assert one_pair(orpo, likely, lengths)[0] == pytest.approx(3 + 0.1 * math.log(2))


@pytest.mark.parametrize("mean", [-1e-1, -1e-3, -1e-5, -1e-6])
def test_odds_of_very_likely_answers_are_exact(mean: float) -> None:
    orpo, tokens = training(plain_orpo, {"beta": 1.0}), (8.0, 8.0)
    for means in ((mean, -2.0), (-2.0, mean), (mean, 2 * mean)):
        (chosen, rejected) = (float(np.float32(8 * each)) / 8 for each in means)
        log_odds = chosen - math.log(-math.expm1(chosen)) - rejected + math.log(-math.expm1(rejected))
        behind = 1 / (1 + math.exp(log_odds))
        loss, gradient = one_pair(orpo, (8 * means[0], 8 * means[1]), tokens)
        assert loss == pytest.approx(-chosen + minus_log_sigmoid(log_odds), rel=2e-6)
        assert gradient == pytest.approx(
            [(-1 + behind / math.expm1(chosen)) / 8, -behind / math.expm1(rejected) / 8], rel=2e-5
        )


@pytest.mark.parametrize("sums", [(0.0, 0.0), (0.0, -9.0), (-9.0, 0.0), (-1e-30, -1e-30), (-9e3, -9e3), (-9e3, 0.0)])
@each_case
def test_certain_and_impossible_answers_have_finite_losses_and_gradients(
    formula: Callable[..., float], settings: dict[str, Any], sums: Of
) -> None:
    for was in ((0.0, 0.0), (-9e3, 0.0), (0.0, -9e3)):
        loss, gradient = one_pair(training(formula, settings), sums, (3.0, 3.0), was)
        assert math.isfinite(loss) and np.isfinite(gradient).all()


def test_a_certain_answer_before_an_unlikely_one_loses_nothing_in_orpo() -> None:
    loss, gradient = one_pair(training(plain_orpo, {"beta": 1.0}), (0.0, -9.0), (3.0, 3.0))
    assert 0 <= loss < 1e-6 and -1 <= gradient[0] < 0 <= gradient[1] < 1e-6
