"""Token-weighted loss on held-out text: independent of the batch size and the number of ranks.

Every held-out token is predicted exactly once, from up to `context - 1` tokens before it in its shard. If documents are
kept apart, all but the first token of a document are predicted, from the tokens before them in the document.

Bits per byte compare models with different tokenizers: the summed loss of all predicted tokens in bits, divided by the
UTF-8 bytes of the text of these tokens (BPB of Gao et al. 2020, "The Pile", section 3.1: L_T / L_B times the mean loss
/ ln 2). End-of-document tokens are predicted too: their loss counts, as part of encoding the text, and they have no
bytes.

The mask of a held-out window depends only on its corpus and position. So figures of two models with the same tokenizer
and masking cover the same tokens, whatever the batch size, the training seed and the number of ranks.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.common.display import perplexity_of
from trainer.config.training import MaskingConfig
from trainer.data.dataset import HeldOut, document_positions, labels_within, mask_window
from trainer.data.order import stable_key
from trainer.evaluation.scoring import nothing, score_each
from trainer.models.causal import masked_losses
from trainer.models.losses import IGNORED, next_tokens, token_losses_in_pieces
from trainer.models.tokenizer import MaskTokens
from trainer.records.evaluations import Scores
from trainer.training.runtime import Runtime


class TextScores(NamedTuple):
    """Scores by corpus, and over all their tokens."""

    groups: dict[str, Scores]
    total: Scores


def evaluate(
    model: PreTrainedModel,
    held_out: Sequence[HeldOut],
    context: int,
    batch: int,
    runtime: Runtime,
    advance: Callable[[int], None] = nothing,
    masking: tuple[MaskTokens, MaskingConfig] | None = None,
) -> TextScores:
    """Score a model on held-out windows, divided among the ranks; with `masking`, on the masked tokens of the windows.
    Corpora without held-out text are left out.

    Sums are exact in float64, so the number of ranks does not change the result.
    """
    score, summarise = (
        (_score_windows, _scores) if masking is None else (partial(_score_hidden, *masking), _masked_scores)
    )
    sums = {}
    for corpus in held_out:
        if corpus.windows:
            of_some = partial(score, model, corpus, context, runtime.device)
            sums[corpus.name] = score_each(model, len(corpus.windows), 3, batch, runtime, of_some, advance)
    total = torch.cat([torch.zeros(0, 3, dtype=torch.float64), *sums.values()])
    return TextScores({name: summarise(each) for name, each in sums.items()}, summarise(total))


def _score_windows(
    model: PreTrainedModel, corpus: HeldOut, context: int, device: torch.device, places: range
) -> torch.Tensor:
    """The loss in nats of some windows' predicted tokens, the bytes of their text (NaN if unknown), and their number;
    of shape [windows, 3], float64.
    """
    windows = [window for _, window in _read_windows(corpus, context, places)]
    tokens = np.zeros((len(windows), context), dtype=np.int64)
    labels = torch.full((len(windows), context), IGNORED)
    positions = None if corpus.end_id is None else torch.empty((len(windows), context), dtype=torch.int64)
    sums = torch.full((len(windows), 3), math.nan, dtype=torch.float64)
    for row, window in enumerate(windows):
        tokens[row, : len(window)] = targets = window
        if positions is not None and corpus.end_id is not None:
            in_document = document_positions(window, corpus.end_id)
            positions[row, : len(window)], targets = torch.from_numpy(in_document), labels_within(window, in_document)
            positions[row, len(window) :] = torch.arange(context - len(window))  # padding
        labels[row, : len(window)] = next_tokens(torch.from_numpy(targets)[None])[0]
        predicted = targets[1:][targets[1:] != IGNORED]
        if corpus.token_bytes is not None:
            sums[row, 1] = float(corpus.token_bytes[predicted].sum())
        sums[row, 2] = len(predicted)
    on_device = (torch.from_numpy(tokens).to(device), labels.to(device))
    losses = token_losses_in_pieces(model, *on_device, None if positions is None else positions.to(device))
    sums[:, 0] = losses.view(len(windows), context).double().sum(dim=1).cpu()
    return sums


def _read_windows(corpus: HeldOut, context: int, places: range) -> list[tuple[tuple[int, int], NDArray[np.int64]]]:
    """Some windows: the shard and first token of each, and its tokens, of shape [T]."""
    chosen = corpus.windows[places.start : places.stop]
    corpus.shards.use(sorted({shard for shard, _ in chosen}), corpus.windows.used)
    return [((shard, at), corpus.shards.read(shard, at, at + context).astype(np.int64)) for shard, at in chosen]


def _scores(sums: torch.Tensor) -> Scores:
    """Figures from the sums of each window."""
    loss, text_bytes, tokens = (math.fsum(each) for each in sums.T.numpy())
    mean = loss / tokens if tokens else math.nan
    figures = {"loss": mean, "perplexity": perplexity_of(mean)}
    counts = {"tokens": int(tokens), "windows": len(sums)}
    if text_bytes > 0:  # false for NaN
        figures["bits_per_byte"] = loss / math.log(2) / text_bytes
        counts["text_bytes"] = round(text_bytes)
    return Scores(figures=figures, counts=counts)


def _score_hidden(
    tokens: MaskTokens, options: MaskingConfig,
    model: PreTrainedModel, corpus: HeldOut, context: int, device: torch.device, places: range,
) -> torch.Tensor:  # fmt: skip
    """The loss in nats of some windows' masked tokens, the number predicted correctly, and their number; of shape
    [windows, 3], float64.
    """
    ids, labels, read = (np.full((len(places), context), fill, dtype=np.int64) for fill in (0, IGNORED, 0))
    for row, (place, window) in enumerate(_read_windows(corpus, context, places)):
        masked = mask_window(window, stable_key("held-out", corpus.name, *place), tokens, options)
        ids[row, : len(window)], labels[row, : len(window)], read[row, : len(window)] = *masked, 1
    losses, correct = masked_losses(model, *(torch.from_numpy(each).to(device) for each in (ids, labels, read)))
    rows = torch.from_numpy(np.nonzero(labels != IGNORED)[0])
    sums, ones = torch.zeros(len(places), 3, dtype=torch.float64), torch.ones_like(rows, dtype=torch.float64)
    for column, values in enumerate((losses.double().cpu(), correct.double().cpu(), ones)):
        sums[:, column].index_add_(0, rows, values)
    return sums


def _masked_scores(sums: torch.Tensor) -> Scores:
    """Figures from the sums of each window with masked tokens."""
    loss, correct, tokens = (math.fsum(each) for each in sums.T.numpy())
    accuracy = correct / tokens if math.isfinite(loss) else math.nan  # a model that overflows has none
    figures = {"loss": loss / tokens, "perplexity": perplexity_of(loss / tokens), "accuracy": accuracy}
    return Scores(figures=figures, counts={"tokens": int(tokens), "windows": len(sums)})
