"""What training reads: windows over the shards of every corpus, in their order, and the held-out windows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from trainer.common.errors import ConfigError
from trainer.config.training import TrainingConfig
from trainer.corpus.preparation import PreparedData
from trainer.corpus.shard_index import read_index
from trainer.corpus.shards import ShardSet, open_shards
from trainer.order.batches import READ_AHEAD, Batch
from trainer.order.corpus_order import CorpusOrder
from trainer.order.documents import CorpusWindows, DocumentWindows, PlainWindows
from trainer.order.held_out import HeldOut, open_held_out
from trainer.order.mixing import DataOrder
from trainer.order.packed_shards import PackedShard, count_packed, pack_shard
from trainer.order.packed_windows import PackedWindows
from trainer.records.plans import StepPlan
from trainer.store.storage import Store


class Dataset(NamedTuple):
    """Training windows by corpus, their order, and held-out windows."""

    windows: list[CorpusWindows]
    order: DataOrder
    held_out: list[HeldOut]

    def close(self) -> None:
        """Let go of every shard."""
        for shards in [*(w.shards for w in self.windows), *(h.shards for h in self.held_out)]:
            shards.use(())


def open_dataset(
    store: Store, data: PreparedData, training: TrainingConfig, plan: StepPlan, max_held_out: int | None
) -> Dataset:
    """Open the shards; `max_held_out` limits the held-out windows a corpus.

    Raises `ConfigError` if what training reads at a time does not fit into the machine's cache of a remote store.
    """
    sets = [open_shards(store, ref.key) for ref in data.shards]
    windows = [_open_windows(store, s, training) for s in sets]
    _check_cache(store, sets, windows, training, plan)
    orders = [CorpusOrder(training.seed, s.corpus, w.counts, training.locality) for s, w in zip(sets, windows, strict=True)]
    order = DataOrder(training.seed, orders, [corpus.probability for corpus in plan.corpora])
    held_out = [open_held_out(store, s, training.context, max_held_out, training.masks_documents) for s in sets]
    return Dataset(windows, order, held_out)


def _open_windows(store: Store, shards: ShardSet, training: TrainingConfig) -> CorpusWindows:
    """The windows of a corpus, over its stream or of packed documents."""
    context, end_id = training.context, shards.details["eos_id"]
    if training.packing == "best_fit":

        def pack(number: int) -> PackedShard:
            return pack_shard(read_index(store, shards.key, shards.document_index[number]), context)

        counts = count_packed(store, shards, context)
        return PackedWindows(shards.train, pack, counts, context, end_id, training.masks_documents)
    stride = training.stride or context
    if training.masks_documents:
        return DocumentWindows(shards.train, context, stride, end_id)
    return PlainWindows(shards.train, context, stride)


def read_batch(number: int, plan: StepPlan, order: DataOrder, windows: Sequence[CorpusWindows], rank: int) -> Batch:
    """This rank's share of global batch `number`: samples [number * global_batch, (number + 1) * global_batch)."""
    share = plan.global_batch // plan.ranks
    own = slice(rank * share, (rank + 1) * share)
    looked_at = slice(0, plan.global_batch) if windows[0].looks_at_batch else own
    first, count = number * plan.global_batch, looked_at.stop - looked_at.start
    corpora, places = order.samples(first, plan.global_batch)
    for corpus, ahead in order.shards(first + looked_at.start, count).items():
        windows[corpus].prepare(places[looked_at][corpora[looked_at] == corpus], ahead)
    rows = [windows[corpus].inputs(int(place)) for corpus, place in zip(corpora[own], places[own], strict=True)]
    parts = {name: torch.from_numpy(np.stack([row[name] for row in rows])).split(plan.micro_batch) for name in rows[0]}
    micro_batches = [dict(zip(parts, each, strict=True)) for each in zip(*parts.values(), strict=True)]
    targets, tokens = np.sum([windows[corpus].count(places[corpora == corpus]) for corpus in np.unique(corpora)], axis=0)
    return Batch(micro_batches, max(1, int(targets)), int(tokens))  # a batch of which nothing is predicted has the loss 0


def _check_cache(
    store: Store, sets: Sequence[ShardSet], windows: Sequence[CorpusWindows], training: TrainingConfig, plan: StepPlan
) -> None:
    if store.cache_bytes is None:
        return
    needed = sum(s.validation.largest(None) for s in sets)
    for shards, cut, corpus in zip(sets, windows, plan.corpora, strict=True):
        count = None
        if training.locality is not None:
            # What is read by the fastest rank ahead of the slowest, from its first group to its last, and the one that comes
            # next; a group is taken for one of the usual size.
            samples = (READ_AHEAD + 2) * training.global_batch * corpus.probability
            group = training.locality * len(cut) / len(cut.counts)
            count = training.locality * (math.ceil(samples / group) + 2)
        needed += shards.train.largest(count)
    if needed > store.cache_bytes:
        advice = f"lower training.locality ({training.locality})" if training.locality else "set training.locality"
        raise ConfigError(
            f"the shards that training reads at a time take up to {needed:,} bytes, the machine's cache has "
            f"{store.cache_bytes:,}: raise HEADRACE_CACHE_BYTES, {advice}, or prepare more and smaller shards"
        )
