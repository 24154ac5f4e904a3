"""The loss of hidden tokens of held-out text, and the share of them that is told, under masks that never change.

How a held-out window is masked follows from its corpus and its place alone. So figures of two models of the same tokenizer and
masking are of the same tokens, whatever the batch size, the seed of training and the number of ranks.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.config.training import MaskingConfig
from trainer.data.dataset import mask_window
from trainer.data.held_out import HeldOut
from trainer.data.order import stable_key
from trainer.models.causal import masked_losses
from trainer.models.losses import IGNORED
from trainer.models.tokenizer import MaskTokens
from trainer.records.evaluations import CorpusScore, Scores
from trainer.training.runtime import Runtime

LOSS, TOLD, TOKENS = range(3)
"""The columns of a window's sums."""


@torch.no_grad()
def evaluate_masked(
    model: PreTrainedModel,
    held_out: Sequence[HeldOut],
    context: int,
    batch: int,
    runtime: Runtime,
    tokens: MaskTokens,
    options: MaskingConfig,
    advance: Callable[[int], None] = lambda windows: None,
) -> Scores:
    """Score a model on held-out windows, shared among the ranks. Corpora without held-out text are left out.

    Sums are exact in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    was_training = model.training
    model.eval()
    measured: dict[str, CorpusScore] = {}
    everything: list[torch.Tensor] = []
    for corpus in held_out:
        if corpus.windows:
            everything.append(_window_sums(model, corpus, context, batch, runtime, tokens, options, advance))
            measured[corpus.name] = _score(everything[-1])
    model.train(was_training)
    return Scores(corpora=measured, total=_score(torch.cat(everything)))


def _window_sums(
    model: PreTrainedModel, corpus: HeldOut, context: int, batch: int, runtime: Runtime, tokens: MaskTokens,
    options: MaskingConfig, advance: Callable[[int], None],
) -> torch.Tensor:  # fmt: skip
    """Each window's loss in nats, and how many of its hidden tokens are told, and are there; of shape [windows, 3], float64."""
    sums, used = torch.zeros(len(corpus.windows), 3, dtype=torch.float64), corpus.windows.used
    for round_ in range(0, len(corpus.windows), runtime.ranks * batch):
        runtime.check_stop()
        first = round_ + runtime.rank * batch
        own = corpus.windows[first : first + batch]
        if not own:  # of the last round, some ranks have no share
            break
        corpus.shards.use(sorted({shard for shard, _ in own}), used)
        ids, labels = np.zeros((len(own), context), dtype=np.int64), np.full((len(own), context), IGNORED, dtype=np.int64)
        read = np.zeros((len(own), context), dtype=np.int64)
        for row, (shard, start) in enumerate(own):
            window = corpus.shards.read(shard, start, start + context).astype(np.int64)
            masked = mask_window(window, stable_key("held-out", corpus.name, shard, start), tokens, options)
            ids[row, : len(window)], labels[row, : len(window)], read[row, : len(window)] = *masked, 1
        inputs = (torch.from_numpy(each).to(runtime.device) for each in (ids, labels, read))
        with runtime.accelerator.autocast():
            losses, told = masked_losses(model, *inputs)
        rows = torch.from_numpy(np.nonzero(labels != IGNORED)[0]) + first
        ones = torch.ones_like(rows, dtype=torch.float64)
        for column, values in ((LOSS, losses.double().cpu()), (TOLD, told.double().cpu()), (TOKENS, ones)):
            sums[:, column].index_add_(0, rows, values)
        advance(len(own) * runtime.ranks)
    return runtime.sum(sums)


def _score(sums: torch.Tensor) -> CorpusScore:
    loss, told, tokens = (math.fsum(each) for each in sums.T.numpy())
    mean = loss / tokens
    return CorpusScore(
        loss=mean, perplexity=math.exp(min(mean, 700.0)), tokens=int(tokens), windows=len(sums), accuracy=told / tokens
    )
