"""Encoded pairs of answers: the chosen and the rejected one of pair i are conversations 2i and 2i + 1 of a split."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.chat.encoded import ChatSplit, encode_conversations, read_windows
from trainer.kinds.preference.pairs import PAIR

encode = partial(encode_conversations, form=PAIR)


def pair_lengths(split: ChatSplit) -> NDArray[np.int64]:
    """The tokens of both conversations of each pair, of shape [N]."""
    lengths: NDArray[np.int64] = split.lengths.reshape(-1, 2).sum(axis=1)
    return lengths


def answer_lengths(split: ChatSplit) -> NDArray[np.int64]:
    """The tokens of the chosen and the rejected answer of each pair, of shape [N, 2]."""
    return split.answer_tokens.reshape(-1, 2)


def read_pairs(split: ChatSplit, pairs: Iterable[int], pad_id: int) -> dict[str, torch.Tensor]:
    """Some pairs as rows of a batch, filled up to the longest: input_ids and labels, of shape [2B, T]."""
    rows = [row for pair in pairs for row in (2 * pair, 2 * pair + 1)]
    read = read_windows(split, split.alone, rows, pad_id)
    return {name: torch.from_numpy(read[name]) for name in ("input_ids", "labels")}
