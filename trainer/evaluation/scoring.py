"""The scoring loop: samples in rounds of a batch a rank, each sample once, whatever the batch and the ranks.

What a batch holds and what is added up is said by each kind. Figures are the same whatever the batch only of a model
whose answers do not depend on what fills up a row.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded


class Round(NamedTuple):
    """The samples of a round: of all ranks, this rank's `share`, and those that it computes."""

    samples: range
    share: range
    computed: range
    """The share; the first sample where there is none, as all must compute where each holds a part of the model."""


def nothing(samples: int) -> None:
    """Show no progress."""


@torch.no_grad()
def rounds(
    model: nn.Module, samples: int, batch: int, runtime: Runtime, advance: Callable[[int], None] = nothing
) -> Iterator[Round]:
    """Rounds over so many samples, for which the model is put into the state for evaluation; every rank gets each."""
    was_training, divided = model.training, is_sharded(model)
    model.eval()
    try:
        for first in range(0, samples, runtime.ranks * batch):
            runtime.check_stop()
            whole = range(first, min(first + runtime.ranks * batch, samples))
            share = whole[runtime.rank * batch : (runtime.rank + 1) * batch]
            yield Round(whole, share, share or range(1 if divided else 0))
            advance(len(whole))
    finally:
        model.train(was_training)


@torch.no_grad()
def score_each(
    model: nn.Module,
    samples: int,
    figures: int,
    batch: int,
    runtime: Runtime,
    score: Callable[[range], torch.Tensor],
    advance: Callable[[int], None] = nothing,
) -> torch.Tensor:
    """Figures of each sample, of shape [samples, figures], float64: the same on every rank, and for any number of them.

    `score` gives those of some samples, of shape [len, figures]; in the precision of the runtime.
    """
    found = torch.zeros(samples, figures, dtype=torch.float64)
    for _, share, computed in rounds(model, samples, batch, runtime, advance):
        if computed:
            with runtime.accelerator.autocast():
                told = score(computed)
            found[share.start : share.stop] = told[: len(share)].double().cpu()
    return runtime.sum(found)
