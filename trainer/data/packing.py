"""Short samples and whole documents in windows of one size: best-fit decreasing, the same for the same lengths.

The longest sample comes first, and each goes into the window that it fills best; of windows that it fills alike, into
the one that has been so full for the shortest time. Of equally long samples the first comes first. Windows are numbered
in the order in which they were begun. Best-fit decreasing needs at most 11/9 of the fewest windows, and one more
(Johnson, 1973).

A document that is longer than a window is cut into pieces of its length, each of which is then a document of its own.
The windows of a shard follow from its index alone: so they are made when they are needed, and stay where other shards
change.
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
"""Part of a run's identity: a run that began with another packing is not continued with this one."""


class Packing(NamedTuple):
    """Which samples are in each window: those of window w are `samples[starts[w]:starts[w + 1]]`, longest first.

    `fill` is the share of the windows' room that is taken.
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
        """For each window the sum of what is said of its samples: of their lengths, its own. Shapes [N] ->
        [windows].
        """
        return np.add.reduceat(values[self.samples], self.starts[:-1]) if len(self) else np.zeros(0, dtype=np.int64)


def pack(lengths: NDArray[np.int64], size: int) -> Packing:
    """Put samples of these lengths into windows of `size`. Raises `ValueError` for one that is longer, or has no
    length.
    """
    if len(lengths) and not (lengths.min() > 0 and lengths.max() <= size):
        raise ValueError(f"samples have lengths from {lengths.min()} to {lengths.max()}, a window holds 1 to {size}")
    windows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(size + 1)]
    rooms = 0  # bit r is set if a window has room for exactly r more
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        if enough := rooms >> length:
            room = length + (enough & -enough).bit_length() - 1  # the least that suffices
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
    """The same form where each sample has a window of its own."""
    count = len(lengths)
    fill = float(lengths.sum()) / (count * size) if count else 0.0
    return Packing(np.arange(count), np.arange(count + 1), fill)


I64 = NDArray[np.int64]


class PackedShard(NamedTuple):
    """The pieces of a shard's documents, in the order of its windows: where each begins, and its tokens.

    Those of window w are the pieces `ends[w]` to `ends[w + 1] - 1`, the longest first.
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
    """Pack the documents of a shard, given where they begin and where the last one ends."""
    counts = -(-np.diff(index) // context)
    owners = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = index[owners] + places * context
    lengths = np.minimum(context, index[owners + 1] - starts)
    packing = pack(lengths, context)
    return PackedShard(starts[packing.samples], lengths[packing.samples].astype(np.int32), packing.starts)


def count_packed(store: Store, shards: ShardSet, context: int) -> list[int]:
    """The packed windows of each shard of a set.

    To count them every shard is packed, so the counts are remembered in the store, under what they follow from.
    """
    key = f"cache/packed-{fingerprint([FORMAT, context, [file.sha256 for file in shards.document_index]])}.json"
    known = recall_sealed(store, key, "packing the documents again")
    if known is None:
        packed = (pack_shard(read_index(store, shards.key, file), context) for file in shards.document_index)
        known = {"windows": [len(each) for each in packed]}
        write_sealed(store, key, known, indent=None)
    counts: list[int] = known["windows"]
    return counts
