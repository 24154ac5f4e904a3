"""Token-weighted loss on held-out text: the same whatever the batch size and the number of ranks.

Every held-out token is predicted exactly once, from up to `context - 1` tokens before it in its shard.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.losses import IGNORED, next_tokens, token_losses
from trainer.results import CorpusScore, Scores
from trainer.runtime import Runtime
from trainer.windows import Shards


class HeldOut(NamedTuple):
    """The windows of one corpus's held-out shards: where each begins."""

    name: str
    shards: Shards
    windows: list[tuple[int, int]]

    @property
    def used(self) -> list[int]:
        """The shards that the windows lie in."""
        return sorted({shard for shard, _ in self.windows})


def held_out_windows(name: str, shards: Shards, context: int, max_windows: int | None) -> HeldOut:
    """Windows that overlap by one token, so that each token but a shard's first is predicted once; or an even choice."""
    windows = [(number, start) for number, length in enumerate(shards.lengths) for start in range(0, length - 1, context - 1)]
    if max_windows is not None and len(windows) > max_windows:
        windows = [windows[int(place)] for place in np.linspace(0, len(windows) - 1, max_windows).round()]
    return HeldOut(name, shards, windows)


@torch.no_grad()
def evaluate(
    model: PreTrainedModel,
    held_out: Sequence[HeldOut],
    context: int,
    batch: int,
    runtime: Runtime,
    advance: Callable[[int], None] = lambda windows: None,
) -> Scores:
    """Score a model on held-out windows, shared among the ranks. Corpora without held-out text are left out.

    Sums are exact in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    was_training = model.training
    model.eval()
    scores: dict[str, CorpusScore] = {}
    sums: list[float] = []
    for corpus in held_out:
        if not corpus.windows:
            continue
        losses = _window_losses(model, corpus, context, batch, runtime, advance)
        tokens = sum(min(context, corpus.shards.lengths[shard] - start) - 1 for shard, start in corpus.windows)
        sums.append(math.fsum(losses.tolist()))
        scores[corpus.name] = _score(sums[-1], tokens, len(corpus.windows))
    model.train(was_training)
    tokens, windows = sum(s.tokens for s in scores.values()), sum(s.windows for s in scores.values())
    return Scores(corpora=scores, total=_score(math.fsum(sums), tokens, windows))


def _window_losses(
    model: PreTrainedModel, corpus: HeldOut, context: int, batch: int, runtime: Runtime, advance: Callable[[int], None]
) -> torch.Tensor:
    """Summed loss of each window, of shape [windows], float64."""
    losses = torch.zeros(len(corpus.windows), dtype=torch.float64)
    used = corpus.used
    for first in range(runtime.rank * batch, len(corpus.windows), runtime.ranks * batch):
        chosen = corpus.windows[first : first + batch]
        corpus.shards.use(sorted({shard for shard, _ in chosen}), used)
        tokens = np.zeros((len(chosen), context), dtype=np.int64)
        labels = torch.full((len(chosen), context), IGNORED)
        for row, (shard, start) in enumerate(chosen):
            window = corpus.shards[shard][start : start + context].astype(np.int64)
            tokens[row, : len(window)] = window
            labels[row, : len(window)] = next_tokens(torch.from_numpy(window)[None])[0]
        with runtime.accelerator.autocast():
            each = token_losses(model, torch.from_numpy(tokens).to(runtime.device), labels.to(runtime.device))
        losses[first : first + len(chosen)] = each.view(len(chosen), context).double().sum(dim=1).cpu()
        advance(len(chosen) * runtime.ranks)
    return runtime.sum(losses)


def _score(total: float, tokens: int, windows: int) -> CorpusScore:
    mean = total / tokens if tokens else math.nan
    return CorpusScore(loss=mean, perplexity=math.exp(min(mean, 700.0)), tokens=tokens, windows=windows)
