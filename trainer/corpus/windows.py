"""Windows over token shards: `context` tokens long, one every `stride` tokens, the tail of each shard kept.

The same windows as the reference loops cut: the last window of a shard is its last `context` tokens, and overlaps the one
before. A shard shorter than one window gives none.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[Any]


class Shards(Protocol):
    """The tokens of each shard of a corpus; `lengths` are known before any is read."""

    @property
    def lengths(self) -> Sequence[int]: ...
    def read(self, number: int, start: int, stop: int) -> Tokens: ...
    def use(self, now: Iterable[int], ahead: Sequence[int] = ()) -> None: ...


def count_windows(tokens: int, context: int, stride: int) -> int:
    """Number of windows in a shard of this many tokens."""
    return 0 if tokens < context else -(-(tokens - context) // stride) + 1


class Windows:
    """The windows of one corpus, numbered through all its shards."""

    def __init__(self, shards: Shards, context: int, stride: int) -> None:
        self.shards, self.context, self._stride = shards, context, stride
        self.counts = [count_windows(length, context, stride) for length in shards.lengths]
        """Windows in each shard."""
        self._ends = np.cumsum(self.counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def prepare(self, numbers: NDArray[np.int64], ahead: Sequence[int]) -> None:
        """Get ready the shards of these windows, and those that are read next; others are let go of."""
        self.shards.use(np.unique(np.searchsorted(self._ends, numbers, side="right")).tolist(), ahead)

    def read(self, number: int) -> NDArray[np.int64]:
        """The tokens of a window, of shape [context]."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        place = number - (int(self._ends[shard - 1]) if shard else 0)
        start = min(place * self._stride, self.shards.lengths[shard] - self.context)
        return self.shards.read(shard, start, start + self.context).astype(np.int64)
