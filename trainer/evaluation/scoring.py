"""The scoring loop: each sample is scored once, in rounds of one batch per rank; and the loop that generates texts.

Each kind defines what a batch holds and what is summed. Figures are independent of the batch size only for models whose
outputs do not depend on padding.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from trainer.common.stopping import check_stop
from trainer.models.layers import in_mode
from trainer.records.evaluations import Sample
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded

Item = TypeVar("Item")


class Round(NamedTuple):
    """The samples of a rank in a round: its `share`, and those that it computes."""

    share: range
    computed: range
    """The share; if it is empty and the model is sharded, the first sample, because then all ranks must compute."""


def nothing(samples: int) -> None:
    """Show no progress."""


@torch.no_grad()
def rounds(
    model: nn.Module, samples: int, batch: int, runtime: Runtime, advance: Callable[[int], None] = nothing
) -> Iterator[Round]:
    """Yield rounds over `samples` samples with the model in evaluation mode; every rank gets every round."""
    divided = is_sharded(model)
    with in_mode(model, training=False):
        for first in range(0, samples, runtime.ranks * batch):
            runtime.check_stop()
            whole = range(first, min(first + runtime.ranks * batch, samples))
            share = whole[runtime.rank * batch : (runtime.rank + 1) * batch]
            yield Round(share, share or range(1 if divided else 0))
            advance(len(whole))


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
    """Figures of each sample, of shape [samples, figures], float64; the same on every rank, for any number of ranks.

    `score` returns the figures of a range of samples, of shape [len, figures], computed in the runtime's precision.
    """
    found = torch.zeros(samples, figures, dtype=torch.float64)
    for share, computed in rounds(model, samples, batch, runtime, advance):
        if computed:
            with runtime.accelerator.autocast():
                scores = score(computed)
            found[share.start : share.stop] = scores[: len(share)].double().cpu()
    return runtime.sum(found)


def generate_each(
    model: nn.Module, items: Iterable[Item], generate: Callable[[Item], Sample], runtime: Runtime
) -> list[Sample]:
    """Generate a sample for each of the `items`. Called by every rank.

    Only rank 0 generates; with a sharded model all ranks do, and the samples of rank 0 are returned.
    """

    def generate_all(check: Callable[[], None]) -> list[Sample]:
        samples = []
        for each in items:
            check()
            samples.append(generate(each))
        return samples

    if not is_sharded(model):
        return runtime.on_first(lambda: generate_all(check_stop))
    samples = generate_all(runtime.check_stop)
    return runtime.on_first(lambda: samples)
