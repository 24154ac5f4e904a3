"""Losses of preference tuning: what each makes of the log-probabilities of a pair's two answers.

`sums` are log p(answer | prompt) in nats of the chosen and the rejected answer of each pair, summed over the answer's
tokens, of shape [B, 2]; `reference` are those of the model as it was, `tokens` the lengths of the answers.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import logsigmoid

from trainer.kinds.preference.job import PreferenceTrainingConfig

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PreferenceTrainingConfig], torch.Tensor]


def dpo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Rafailov et al. 2023 (arXiv:2305.18290), equation 7: -log sigmoid(reward of chosen - reward of rejected).

    With label smoothing e, (1 - e) of that and e of the same with the answers exchanged: Mitchell 2023, "A note on DPO
    with noisy preferences", equation 3.
    """
    margin = how.beta * _difference(sums - reference)
    smoothed = how.label_smoothing
    return -logsigmoid(margin) * (1 - smoothed) - logsigmoid(-margin) * smoothed


def ipo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Azar et al. 2023 (arXiv:2310.12036), equation 17, with means over an answer's tokens in place of sums, as its
    authors have recommended since: (difference - 1 / (2 beta)) ** 2.
    """
    return (_difference((sums - reference) / tokens) - 1 / (2 * how.beta)) ** 2


def simpo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Meng et al. 2024 (arXiv:2405.14734), equation 6: -log sigmoid(beta * difference of means - gamma)."""
    return -logsigmoid(how.beta * _difference(sums / tokens) - (how.gamma or 0.0))


def orpo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Hong et al. 2024 (arXiv:2403.07691), equations 6 and 7: the mean loss of the chosen answer's tokens, and beta
    times -log sigmoid(log(odds of chosen / odds of rejected)), with odds p / (1 - p) of p = exp(mean of an answer).
    """
    means = sums / tokens
    log_odds = means - torch.log(-torch.expm1(means.clamp(max=-1e-7)))  # 1 - exp(mean) would lose digits near 1
    return -means[:, 0] - how.beta * logsigmoid(_difference(log_odds))


LOSSES: dict[str, Loss] = {"dpo": dpo, "ipo": ipo, "simpo": simpo, "orpo": orpo}


def rewards(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """What the loss takes for the rewards of the two answers, of shape [B, 2]: beta times the log-probability, less the
    reference's if there is one; a mean over the answer's tokens but with dpo.
    """
    over = sums - reference if how.needs_reference else sums
    return how.beta * (over if how.loss == "dpo" else over / tokens)


def _difference(values: torch.Tensor) -> torch.Tensor:
    """Of the chosen and the rejected answer: [B, 2] -> [B]."""
    return values[:, 0] - values[:, 1]
