"""Packing short samples or whole documents into windows of one size by best-fit decreasing; deterministic.

Samples are placed longest first; equally long ones in their order. Each goes into the window that it leaves with the
least room; among equal windows, into the one that most recently reached its level. Windows are numbered in the order of
their creation. Best-fit decreasing needs at most 11/9 of the optimal number of windows, plus one (Johnson, 1973).

A document longer than a window is cut into window-sized pieces, each treated as a document. A shard's windows depend on
its index alone, so they are computed when needed, and changes of other shards do not affect them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.shard_files import read_index
from trainer.data.shards import ShardSet
from trainer.records.sealed import recall_sealed, write_sealed
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

FORMAT = 1
"""Part of a run's identity: a run that began with another format of packing cannot resume with this one."""


class Packing(NamedTuple):
    """The samples of each window: those of window w are `samples[starts[w]:starts[w + 1]]`, longest first.

    `fill` is the used share of all windows' room.
    """

    samples: NDArray[np.int64]
    starts: NDArray[np.int64]
    fill: float

    def __len__(self) -> int:
        return len(self.starts) - 1

    def window(self, number: int) -> NDArray[np.int64]:
        """The samples of a window."""
        return self.samples[self.starts[number] : self.starts[number + 1]]

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sum a per-sample value over each window; lengths give the windows' lengths. Shapes [N] -> [windows]."""
        return np.add.reduceat(values[self.samples], self.starts[:-1]) if len(self) else np.zeros(0, dtype=np.int64)


def pack(lengths: NDArray[np.int64], size: int) -> Packing:
    """Pack samples of these lengths into windows of `size`; raise `ValueError` for a length outside 1 to `size`."""
    if len(lengths) and not (lengths.min() > 0 and lengths.max() <= size):
        raise ValueError(f"samples have lengths from {lengths.min()} to {lengths.max()}, expected 1 to {size}")
    windows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(size + 1)]
    rooms = 0  # bit r is set if a window has room for exactly r more
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        if enough := rooms >> length:
            room = length + (enough & -enough).bit_length() - 1  # the smallest that suffices
            window = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, window = size, len(windows)
            windows.append([])
        windows[window].append(sample)
        left = room - length
        with_room[left].append(window)
        rooms |= 1 << left
    samples = np.array([sample for window in windows for sample in window], dtype=np.int64)
    fill = int(lengths.sum()) / (len(windows) * size) if windows else 0.0
    return Packing(samples, np.cumsum([0, *map(len, windows)]).astype(np.int64), fill)


def one_each(lengths: NDArray[np.int64], size: int) -> Packing:
    """A `Packing` in which each sample has its own window."""
    count = len(lengths)
    fill = float(lengths.sum()) / (count * size) if count else 0.0
    return Packing(np.arange(count), np.arange(count + 1), fill)


I64 = NDArray[np.int64]


class PackedShard(NamedTuple):
    """The pieces of a shard's documents in the order of its windows: the first token and the length of each.

    Window w holds pieces `ends[w]` to `ends[w + 1] - 1`, longest first.
    """

    starts: I64
    lengths: NDArray[np.int32]
    ends: I64

    def __len__(self) -> int:
        return len(self.ends) - 1

    def pieces(self, window: int) -> Iterator[tuple[int, int]]:
        """Start and length of each piece of a window."""
        here = slice(self.ends[window], self.ends[window + 1])
        return zip(self.starts[here].tolist(), self.lengths[here].tolist(), strict=True)


def pack_shard(index: I64, context: int) -> PackedShard:
    """Pack the documents of a shard, given the start of each and the end of the last."""
    counts = -(-np.diff(index) // context)
    owners = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = index[owners] + places * context
    lengths = np.minimum(context, index[owners + 1] - starts)
    packing = pack(lengths, context)
    return PackedShard(starts[packing.samples], lengths[packing.samples].astype(np.int32), packing.starts)


def count_packed(store: Store, shards: ShardSet, context: int) -> list[int]:
    """The number of packed windows of each shard of a set.

    Counting means packing every shard, so the store caches the counts under a key of everything they depend on.
    """
    key = f"cache/packed-{fingerprint([FORMAT, context, [file.sha256 for file in shards.document_index]])}.json"
    known = recall_sealed(store, key, "packing the documents again")
    if known is None:
        packed = (pack_shard(read_index(store, shards.key, file), context) for file in shards.document_index)
        known = {"windows": [len(each) for each in packed]}
        write_sealed(store, key, known, indent=None)
    counts: list[int] = known["windows"]
    return counts
