"""Windows over held-out shards, in which every token but a shard's first is predicted once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.shard_files import Shards
from trainer.data.shards import ShardSet
from trainer.models.tokenizer import byte_lengths, load_tokenizer
from trainer.store.storage import Store


class HeldOutWindows:
    """Windows that overlap by one token, so that each token but a shard's first is predicted once; or `most`, evenly
    chosen.

    A part of them is a list of each one's shard and first token: which they are is arithmetic, so that millions take no
    memory.
    """

    def __init__(self, lengths: Sequence[int], context: int, most: int | None) -> None:
        self._step = context - 1
        counts = np.array([max(0, -(-(length - 1) // self._step)) for length in lengths], dtype=np.int64)
        self._ends = counts.cumsum()
        self._begins = self._ends - counts
        everything = int(counts.sum())
        self._chosen: NDArray[np.int64] | None = None
        if most is not None and everything > most:
            self._chosen = np.linspace(0, everything - 1, most).round().astype(np.int64)
        self._count = everything if self._chosen is None else len(self._chosen)
        numbers = np.flatnonzero(counts) if self._chosen is None else np.unique(self._shards(self._chosen))
        self.used: list[int] = numbers.tolist()
        """The shards that the windows lie in."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> list[tuple[int, int]]:
        numbers = np.arange(*part.indices(self._count)) if self._chosen is None else self._chosen[part]
        shards = self._shards(numbers)
        starts = (numbers - self._begins[shards]) * self._step
        return list(zip(shards.tolist(), starts.tolist(), strict=True))

    def _shards(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._ends, numbers, side="right")


class HeldOut(NamedTuple):
    """The windows of one corpus's held-out shards: where each begins, and the bytes of text that each token id stands
    for.
    """

    name: str
    shards: Shards
    windows: HeldOutWindows
    token_bytes: NDArray[np.float64] | None = None
    end_id: int | None = None
    """The token that ends a document, where documents are told apart; None where windows are read as one text."""


def open_held_out(
    store: Store, shards: ShardSet, context: int, max_windows: int | None, document_mask: bool = False
) -> HeldOut:
    """The held-out windows of a published set; with `document_mask`, documents are told apart in them.

    What tokens stand for is scaled so that all held-out text has the bytes that were counted when the shards were
    built: for a byte-level tokenizer this changes nothing.
    """
    totals, token_bytes = shards.details["totals"], None
    if known := totals["validation_token_bytes"]:
        lengths = byte_lengths(load_tokenizer(store, shards.tokenizer).json)
        token_bytes = lengths * (totals["validation_bytes"] / known)
    windows = HeldOutWindows(shards.validation.lengths, context, max_windows)
    end_id = shards.details["eos_id"] if document_mask else None
    return HeldOut(shards.corpus, shards.validation, windows, token_bytes, end_id)
