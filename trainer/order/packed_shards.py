"""Whole documents, packed into windows shard by shard (Ding et al. 2024, "Fewer Truncations Improve Language Modeling").

A document that is longer than a window is cut into pieces of its length, each of which is then a document of its own. The
windows of a shard follow from its index alone: so they are made when they are needed, and stay where other shards change.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.corpus.shard_index import read_index
from trainer.corpus.shards import ShardSet
from trainer.order.packing import FORMAT, pack
from trainer.records.sealed import recall_sealed, write_sealed
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

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
