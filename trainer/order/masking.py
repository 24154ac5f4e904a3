"""Masks of windows: a pure function of a key, such as the seed and the number of a sample, and of the window's tokens.

So they are the same on any number of ranks and after any interruption; another pass over a window masks others of its tokens.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.config.training import MaskingConfig
from trainer.models.losses import IGNORED
from trainer.models.tokenizer import MaskTokens


class Masked(NamedTuple):
    """A window as the model reads it, and the token to be told at each position that is predicted; both of shape [T]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]


def predicted_in(length: int, fraction: float) -> int:
    """How many tokens of a window are predicted: the same for all of a length, so that a batch's number needs no counting."""
    return max(1, round(fraction * length))


def mask_window(tokens_T: NDArray[np.int64], key: int, tokens: MaskTokens, options: MaskingConfig) -> Masked:
    """Choose tokens, or words as long as there is room, by lot; special tokens are taken when there are no others left.

    The last word that is chosen may be cut, as the number is fixed.
    """
    draw = np.random.Generator(np.random.Philox(key=key))
    words = _words(tokens_T, tokens) if options.whole_words else np.arange(len(tokens_T))
    lots = draw.random(len(tokens_T))[words]
    order = np.lexsort((np.arange(len(tokens_T)), lots, tokens.special[tokens_T]))
    chosen = order[: predicted_in(len(tokens_T), options.fraction)]
    labels = np.full(len(tokens_T), IGNORED, dtype=np.int64)
    labels[chosen] = tokens_T[chosen]
    kinds, others = draw.random(len(chosen)), tokens.ordinary[draw.integers(len(tokens.ordinary), size=len(chosen))]
    masked, replaced = kinds < options.mask_share, kinds < options.mask_share + options.random_share
    input_ids = tokens_T.copy()
    input_ids[chosen] = np.where(masked, tokens.mask_id, np.where(replaced, others, tokens_T[chosen]))
    return Masked(input_ids, labels)


def _words(tokens_T: NDArray[np.int64], tokens: MaskTokens) -> NDArray[np.int64]:
    """The number of the word that each token is of; a special token is one by itself, and ends the word before it."""
    special = tokens.special[tokens_T]
    after_special = np.concatenate(([True], special[:-1]))
    begins = ~tokens.continues[tokens_T] | after_special
    return np.cumsum(begins) - 1
