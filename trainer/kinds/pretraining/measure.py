"""Token-weighted loss on held-out text: the same whatever the batch size and the number of ranks.

Every held-out token is predicted exactly once, from up to `context - 1` tokens before it in its shard; where documents
are told apart, all but the first of a document, from those before it in its document.

Bits per byte is what models with different tokenizers can be compared by: the summed loss of all predicted tokens, in
bits, divided by the UTF-8 bytes of the text that they stand for (BPB of Gao et al. 2020, "The Pile", section 3.1: L_T /
L_B times the mean loss / ln 2). The ends of documents are predicted too: their loss counts, as it is part of what
telling the text takes, and they stand for no byte.

How a held-out window is masked follows from its corpus and its place alone. So figures of two models of the same
tokenizer and masking are of the same tokens, whatever the batch size, the seed of training and the number of ranks.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.common.formats import perplexity_of
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
) -> TextScores:
    """Score a model on held-out windows, shared among the ranks. Corpora without held-out text are left out.

    Sums are exact in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    measured: dict[str, _Sums] = {}
    for corpus in held_out:
        if not corpus.windows:
            continue
        losses, text_bytes, tokens = _window_sums(model, corpus, context, batch, runtime, advance).T.numpy()
        counted = None if corpus.token_bytes is None else math.fsum(text_bytes)
        measured[corpus.name] = _Sums(math.fsum(losses), int(math.fsum(tokens)), len(corpus.windows), counted)
    counts = [each.text_bytes for each in measured.values()]
    known = [each for each in counts if each is not None]
    total = _Sums(
        math.fsum(each.loss for each in measured.values()),
        sum(each.tokens for each in measured.values()),
        sum(each.windows for each in measured.values()),
        math.fsum(known) if known and len(known) == len(counts) else None,
    )
    return TextScores({name: _score(each) for name, each in measured.items()}, _score(total))


class _Sums(NamedTuple):
    """Sums over the predicted tokens: their loss in nats, their number, and the bytes of text that they stand for."""

    loss: float
    tokens: int
    windows: int
    text_bytes: float | None


def _window_sums(
    model: PreTrainedModel, corpus: HeldOut, context: int, batch: int, runtime: Runtime, advance: Callable[[int], None]
) -> torch.Tensor:
    """Each window's loss in nats and bytes of text, over the tokens that it predicts, and their number.

    Of shape [windows, 3], float64.
    """

    def score(places: range) -> torch.Tensor:
        windows = [window for _, window in _read_windows(corpus, context, places)]
        tokens = np.zeros((len(windows), context), dtype=np.int64)
        labels = torch.full((len(windows), context), IGNORED)
        positions = None if corpus.end_id is None else torch.empty((len(windows), context), dtype=torch.int64)
        sums = torch.zeros(len(windows), 3, dtype=torch.float64)
        for row, window in enumerate(windows):
            tokens[row, : len(window)] = told = window
            if positions is not None and corpus.end_id is not None:
                begun_anew = document_positions(window, corpus.end_id)
                positions[row, : len(window)], told = torch.from_numpy(begun_anew), labels_within(window, begun_anew)
                positions[row, len(window) :] = torch.arange(context - len(window))  # what fills up
            labels[row, : len(window)] = next_tokens(torch.from_numpy(told)[None])[0]
            predicted = told[1:][told[1:] != IGNORED]
            if corpus.token_bytes is not None:
                sums[row, 1] = float(corpus.token_bytes[predicted].sum())
            sums[row, 2] = len(predicted)
        on_device = (torch.from_numpy(tokens).to(runtime.device), labels.to(runtime.device))
        starts = None if positions is None else positions.to(runtime.device)
        losses = token_losses_in_pieces(model, *on_device, starts)
        sums[:, 0] = losses.view(len(windows), context).double().sum(dim=1).cpu()
        return sums

    return score_each(model, len(corpus.windows), 3, batch, runtime, score, advance)


def _read_windows(corpus: HeldOut, context: int, places: range) -> list[tuple[tuple[int, int], NDArray[np.int64]]]:
    """Some windows: the shard and the first token of each, and its tokens, of shape [T]."""
    chosen = corpus.windows[places.start : places.stop]
    corpus.shards.use(sorted({shard for shard, _ in chosen}), corpus.windows.used)
    return [((shard, at), corpus.shards.read(shard, at, at + context).astype(np.int64)) for shard, at in chosen]


def _score(sums: _Sums) -> Scores:
    mean = sums.loss / sums.tokens if sums.tokens else math.nan
    figures = {"loss": mean, "perplexity": perplexity_of(mean)}
    counts = {"tokens": sums.tokens, "windows": sums.windows}
    if sums.text_bytes:
        figures["bits_per_byte"] = sums.loss / math.log(2) / sums.text_bytes
        counts["text_bytes"] = round(sums.text_bytes)
    return Scores(figures=figures, counts=counts)


LOSS, TOLD, TOKENS = range(3)
"""The columns of a window's sums."""


def evaluate_masked(
    model: PreTrainedModel,
    held_out: Sequence[HeldOut],
    context: int,
    batch: int,
    runtime: Runtime,
    tokens: MaskTokens,
    options: MaskingConfig,
    advance: Callable[[int], None] = nothing,
) -> TextScores:
    """Score a model on held-out windows, shared among the ranks. Corpora without held-out text are left out.

    Sums are exact in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    measured: dict[str, Scores] = {}
    everything: list[torch.Tensor] = []
    for corpus in held_out:
        if corpus.windows:
            everything.append(_hidden_sums(model, corpus, context, batch, runtime, tokens, options, advance))
            measured[corpus.name] = _hidden_score(everything[-1])
    return TextScores(measured, _hidden_score(torch.cat(everything)))


def _hidden_sums(
    model: PreTrainedModel, corpus: HeldOut, context: int, batch: int, runtime: Runtime, tokens: MaskTokens,
    options: MaskingConfig, advance: Callable[[int], None],
) -> torch.Tensor:  # fmt: skip
    """Each window's loss in nats, and how many of its hidden tokens are told, and are there; of shape [windows, 3],
    float64.
    """

    def score(places: range) -> torch.Tensor:
        ids, labels, read = (np.full((len(places), context), fill, dtype=np.int64) for fill in (0, IGNORED, 0))
        for row, (place, window) in enumerate(_read_windows(corpus, context, places)):
            masked = mask_window(window, stable_key("held-out", corpus.name, *place), tokens, options)
            ids[row, : len(window)], labels[row, : len(window)], read[row, : len(window)] = *masked, 1
        losses, told = masked_losses(
            model, *(torch.from_numpy(each).to(runtime.device) for each in (ids, labels, read))
        )
        rows = torch.from_numpy(np.nonzero(labels != IGNORED)[0])
        sums, ones = torch.zeros(len(places), 3, dtype=torch.float64), torch.ones_like(rows, dtype=torch.float64)
        for column, values in ((LOSS, losses.double().cpu()), (TOLD, told.double().cpu()), (TOKENS, ones)):
            sums[:, column].index_add_(0, rows, values)
        return sums

    return score_each(model, len(corpus.windows), 3, batch, runtime, score, advance)


def _hidden_score(sums: torch.Tensor) -> Scores:
    loss, told, tokens = (math.fsum(each) for each in sums.T.numpy())
    figures = {"loss": loss / tokens, "perplexity": perplexity_of(loss / tokens), "accuracy": told / tokens}
    return Scores(figures=figures, counts={"tokens": int(tokens), "windows": len(sums)})
