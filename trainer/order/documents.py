"""Windows in which documents are told apart: attention stays within each, as positions begin anew with it.

Families of `transformers` mask by such positions where they are given no mask. The first token of a document is not predicted,
as nothing stands before it that it could be predicted from: so losses are those of the documents by themselves.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.corpus.windows import Shards, Windows
from trainer.models.losses import IGNORED

I64 = NDArray[np.int64]


class Counts(NamedTuple):
    """Of some windows, the tokens that are predicted, and those that are read."""

    targets: int
    tokens: int


class CorpusWindows(Protocol):
    """The windows of one corpus as inputs of a model, numbered through all its shards."""

    @property
    def looks_at_batch(self) -> bool:
        """Whether a rank looks at all windows of a batch, to know how many tokens are predicted in it."""

    @property
    def shards(self) -> Shards:
        """What they are read from."""

    @property
    def counts(self) -> Sequence[int]:
        """Windows in each shard."""

    def __len__(self) -> int: ...

    def prepare(self, numbers: I64, ahead: Sequence[int]) -> None:
        """Get ready the shards of these windows, and those that are read next; others are let go of."""

    def inputs(self, number: int) -> dict[str, I64]:
        """What a model is given of a window, by name; each of shape [context]."""

    def count(self, numbers: I64) -> Counts:
        """What these windows have."""


def document_positions(tokens_T: I64, end_id: int) -> I64:
    """The place of each token in its document, or in what the window has of it; its end token is its last. Shape [T]."""
    places = np.arange(len(tokens_T), dtype=np.int64)
    begins = np.concatenate(([True], tokens_T[:-1] == end_id))
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def labels_within(tokens_T: I64, positions_T: I64) -> I64:
    """Each token as its own label, `IGNORED` where a document begins; of shape [T]."""
    return np.where(positions_T == 0, IGNORED, tokens_T)


class PlainWindows(Windows):
    """The windows of one corpus as inputs of a model: each is read as one text."""

    looks_at_batch = False

    def inputs(self, number: int) -> dict[str, I64]:
        """The tokens of a window."""
        return {"input_ids": self.read(number)}

    def count(self, numbers: I64) -> Counts:
        """All but the first token of each are predicted."""
        return Counts(len(numbers) * (self.context - 1), len(numbers) * self.context)


class DocumentWindows(PlainWindows):
    """The same with documents told apart, each of which is followed by the end token."""

    looks_at_batch = True

    def __init__(self, shards: Shards, context: int, stride: int, end_id: int) -> None:
        super().__init__(shards, context, stride)
        self._end_id = end_id

    def inputs(self, number: int) -> dict[str, I64]:
        """Tokens, labels and positions of a window."""
        tokens = self.read(number)
        positions = document_positions(tokens, self._end_id)
        return {"input_ids": tokens, "labels": labels_within(tokens, positions), "position_ids": positions}

    def count(self, numbers: I64) -> Counts:
        """What these windows have; all but the last token of a window may be followed by another document."""
        ends = sum(int((self.read(int(number))[:-1] == self._end_id).sum()) for number in numbers)
        return Counts(len(numbers) * (self.context - 1) - ends, len(numbers) * self.context)
