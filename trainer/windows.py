"""Windows over token shards: `context` tokens long, one every `stride` tokens, the tail of each shard kept.

The same windows as the reference loops cut: the last window of a shard is its last `context` tokens, and overlaps the one
before. A shard shorter than one window gives none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[Any]


def count_windows(tokens: int, context: int, stride: int) -> int:
    """Number of windows in a shard of this many tokens."""
    return 0 if tokens < context else -(-(tokens - context) // stride) + 1


class Windows:
    """The windows of one corpus, numbered through all its shards."""

    def __init__(self, shards: Sequence[Tokens], context: int, stride: int) -> None:
        self._shards, self._context, self._stride = shards, context, stride
        counts = [count_windows(len(shard), context, stride) for shard in shards]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, number: int) -> NDArray[np.int64]:
        """The tokens of a window, of shape [context]."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        tokens = self._shards[shard]
        place = number - (int(self._ends[shard - 1]) if shard else 0)
        start = min(place * self._stride, len(tokens) - self._context)
        return tokens[start : start + self._context].astype(np.int64)
