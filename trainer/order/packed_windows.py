"""The windows of packed documents as inputs of a model."""

from collections.abc import Callable, Sequence

import numpy as np

from trainer.corpus.windows import Shards
from trainer.models.losses import IGNORED
from trainer.order.documents import I64, Counts, labels_within
from trainer.order.packed_shards import PackedShard


class PackedWindows:
    """The packed windows of one corpus, numbered through all its shards; `counts` are those of each shard.

    `pack` packs a shard: when it is first looked at, and again if it comes back after it was let go of. What a window has no
    documents for is filled up with `fill_id`, which is not predicted, and seen by no document.
    """

    looks_at_batch = True

    def __init__(
        self,
        shards: Shards,
        pack: Callable[[int], PackedShard],
        counts: Sequence[int],
        context: int,
        fill_id: int,
        document_mask: bool,
    ) -> None:
        self.shards, self.counts, self.context = shards, list(counts), context
        self._pack, self._fill_id, self._document_mask = pack, fill_id, document_mask
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self._packed: dict[int, PackedShard] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def prepare(self, numbers: I64, ahead: Sequence[int]) -> None:
        """Get ready the shards of these windows, and those that are read next; others are let go of."""
        now = np.unique(np.searchsorted(self._ends, numbers, side="right")).tolist()
        self.shards.use(now, ahead)
        for shard in self._packed.keys() - {*now, *ahead}:
            del self._packed[shard]

    def inputs(self, number: int) -> dict[str, I64]:
        """Tokens and labels of a window, and with a document mask its positions; each of shape [context]."""
        shard, place = self._locate(number)
        tokens = np.full(self.context, self._fill_id, dtype=np.int64)
        positions = np.zeros(self.context, dtype=np.int64)
        end = 0
        for start, length in self._shard(shard).pieces(place):
            tokens[end : end + length] = self.shards.read(shard, start, start + length)
            positions[end : end + length] = np.arange(length)
            end += length
        if self._document_mask:
            return {"input_ids": tokens, "labels": labels_within(tokens, positions), "position_ids": positions}
        return {"input_ids": tokens, "labels": np.where(np.arange(self.context) < end, tokens, IGNORED)}

    def count(self, numbers: I64) -> Counts:
        """The predicted tokens of these windows, and those that are read."""
        tokens = begun = 0
        for number in numbers.tolist():
            shard, place = self._locate(number)
            lengths = [length for _, length in self._shard(shard).pieces(place)]
            tokens += sum(lengths)
            begun += len(lengths) if self._document_mask else 1
        return Counts(tokens - begun, tokens)

    def _locate(self, number: int) -> tuple[int, int]:
        """The shard of a window, and its number there."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard - 1]) if shard else 0)

    def _shard(self, number: int) -> PackedShard:
        if number not in self._packed:
            self._packed[number] = self._pack(number)
        return self._packed[number]
