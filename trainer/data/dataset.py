"""Training and held-out windows as model inputs: masking, document boundaries, and read-ahead of batches.

Training windows follow the data order. In held-out windows each token except a shard's first is predicted once.

With a document mask, position ids restart at 0 in each document: `transformers` models that receive no attention mask
derive one from such position ids. The first token of a document is not predicted, because it has no context. Each
document's loss therefore does not depend on the other documents in its window.

Which tokens are hidden for masked language modelling is a pure function of a key and the window's tokens. It does not
depend on the number of ranks or on interruptions. Each pass over a window hides different tokens.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.common.errors import ConfigError
from trainer.config.training import MaskingConfig, TrainingConfig
from trainer.data.order import CorpusOrder, DataOrder
from trainer.data.packing import PackedShard, count_packed, pack_shard
from trainer.data.shard_files import Counts, NumberedWindows, Shards, Windows, read_index
from trainer.data.shards import ShardSet, open_shards
from trainer.models.losses import IGNORED
from trainer.models.tokenizer import MaskTokens, byte_lengths, load_tokenizer
from trainer.records.plans import PreparedData, StepPlan
from trainer.store.storage import Store

I64 = NDArray[np.int64]


def document_positions(tokens_T: I64, end_id: int) -> I64:
    """Position of each token in its document, or in the part of it that the window holds; shape [T].

    A document's end token has its last position.
    """
    places = np.arange(len(tokens_T), dtype=np.int64)
    begins = np.concatenate(([True], tokens_T[:-1] == end_id))
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def labels_within(tokens_T: I64, positions_T: I64) -> I64:
    """Labels equal to the tokens, with `IGNORED` where a document begins; shape [T]."""
    return np.where(positions_T == 0, IGNORED, tokens_T)


class DocumentWindows(Windows):
    """Windows over a stream of documents, each followed by the end token; documents do not attend to each other."""

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
        """Predicted and read tokens of these windows; an end token makes the token after it unpredicted."""
        ends = sum(int((self.read(int(number))[:-1] == self._end_id).sum()) for number in numbers)
        return Counts(len(numbers) * (self.context - 1) - ends, len(numbers) * self.context)


class PackedWindows(NumberedWindows):
    """The packed windows of one corpus as model inputs.

    `pack` packs a shard when it is first needed, and again if it is needed after it was released. Free room in a window
    is filled with `fill_id`, which is not predicted. With a document mask, no document attends to the filling.
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
        super().__init__(shards, counts, context)
        self._pack, self._fill_id, self._document_mask = pack, fill_id, document_mask
        self._packed: dict[int, PackedShard] = {}

    def prepare(self, numbers: I64, ahead: Sequence[int]) -> None:
        """Prepare the shards of these windows and of those read next (`ahead`); release all others."""
        super().prepare(numbers, ahead)
        now = np.unique(np.searchsorted(self._ends, numbers, side="right")).tolist()
        for shard in self._packed.keys() - {*now, *ahead}:
            del self._packed[shard]

    def inputs(self, number: int) -> dict[str, I64]:
        """Tokens and labels of a window, and its positions with a document mask; each of shape [context]."""
        shard, place = self.locate(number)
        tokens = np.full(self.context, self._fill_id, dtype=np.int64)
        positions = np.empty(self.context, dtype=np.int64)
        end = 0
        for start, length in self._shard(shard).pieces(place):
            tokens[end : end + length] = self.shards.read(shard, start, start + length)
            positions[end : end + length] = np.arange(length)
            end += length
        positions[end:] = np.arange(self.context - end)
        labels = np.where(np.arange(self.context) < end, tokens, IGNORED)
        if self._document_mask:
            return {"input_ids": tokens, "labels": labels_within(labels, positions), "position_ids": positions}
        return {"input_ids": tokens, "labels": labels}

    def count(self, numbers: I64) -> Counts:
        """Predicted and read tokens of these windows."""
        tokens = begun = 0
        for number in numbers.tolist():
            shard, place = self.locate(number)
            lengths = [length for _, length in self._shard(shard).pieces(place)]
            tokens += sum(lengths)
            begun += len(lengths) if self._document_mask else 1
        return Counts(tokens - begun, tokens)

    def _shard(self, number: int) -> PackedShard:
        if number not in self._packed:
            self._packed[number] = self._pack(number)
        return self._packed[number]


CorpusWindows = Windows | PackedWindows
"""The windows of one corpus as inputs of a model."""


class Masked(NamedTuple):
    """Masked inputs, and the original tokens as labels at the predicted positions; both of shape [T]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]


def predicted_in(length: int, fraction: float) -> int:
    """Predicted tokens of a window; depends on its length alone, so a batch's total needs no counting."""
    return max(1, round(fraction * length))


def mask_window(tokens_T: NDArray[np.int64], key: int, tokens: MaskTokens, options: MaskingConfig) -> Masked:
    """Choose tokens at random, or whole words; choose special tokens only if no others are left.

    The number of chosen tokens is fixed, so the last chosen word may be cut.
    """
    draw = np.random.Generator(np.random.Philox(key=key))
    words = _words(tokens_T, tokens) if options.whole_words else np.arange(len(tokens_T))
    lots = draw.random(len(tokens_T))[words]
    order = np.lexsort((np.arange(len(tokens_T)), lots, tokens.special[tokens_T]))
    chosen = order[: predicted_in(len(tokens_T), options.fraction)]
    labels = np.full(len(tokens_T), IGNORED, dtype=np.int64)
    labels[chosen] = tokens_T[chosen]
    kinds, others = draw.random(len(chosen)), tokens.ordinary[draw.integers(len(tokens.ordinary), size=len(chosen))]
    masked, replaced = kinds < options.mask_share, kinds < options.mask_share + options.random_share
    input_ids = tokens_T.copy()
    input_ids[chosen] = np.where(masked, tokens.mask_id, np.where(replaced, others, tokens_T[chosen]))
    return Masked(input_ids, labels)


def _words(tokens_T: NDArray[np.int64], tokens: MaskTokens) -> NDArray[np.int64]:
    """Word number of each token; a special token is its own word and ends the word before it."""
    special = tokens.special[tokens_T]
    after_special = np.concatenate(([True], special[:-1]))
    begins = ~tokens.continues[tokens_T] | after_special
    return np.cumsum(begins) - 1


class HeldOutWindows:
    """Windows that overlap by one token, so that each token except a shard's first is predicted once.

    If there are more than `most`, only `most` evenly spaced ones are used. A slice returns (shard, first token) pairs;
    they are computed on demand, so millions of windows take no memory.
    """

    def __init__(self, lengths: Sequence[int], context: int, most: int | None) -> None:
        self._step = context - 1
        counts = np.array([max(0, -(-(length - 1) // self._step)) for length in lengths], dtype=np.int64)
        self._ends = counts.cumsum()
        self._begins = self._ends - counts
        everything = int(counts.sum())
        self._chosen: I64 | None = None
        if most is not None and everything > most:
            self._chosen = np.linspace(0, everything - 1, most).round().astype(np.int64)
        self._count = everything if self._chosen is None else len(self._chosen)
        numbers = np.flatnonzero(counts) if self._chosen is None else np.unique(self._shards(self._chosen))
        self.used: list[int] = numbers.tolist()
        """Numbers of the shards that hold the windows."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> list[tuple[int, int]]:
        numbers = np.arange(*part.indices(self._count)) if self._chosen is None else self._chosen[part]
        shards = self._shards(numbers)
        starts = (numbers - self._begins[shards]) * self._step
        return list(zip(shards.tolist(), starts.tolist(), strict=True))

    def _shards(self, numbers: I64) -> I64:
        return np.searchsorted(self._ends, numbers, side="right")


class HeldOut(NamedTuple):
    """The held-out windows of one corpus, and the bytes of text that each token id represents."""

    name: str
    shards: Shards
    windows: HeldOutWindows
    token_bytes: NDArray[np.float64] | None = None
    end_id: int | None = None
    """The end-of-document token if documents are masked from each other; None if a window is read as one text."""


def open_held_out(
    store: Store, shards: ShardSet, context: int, max_windows: int | None, document_mask: bool = False
) -> HeldOut:
    """The held-out windows of a published set; with `document_mask`, documents are masked from each other.

    The bytes per token are scaled so that they add up to the bytes of held-out text counted when the shards were
    built. For a byte-level tokenizer the factor is 1.
    """
    totals, token_bytes = shards.details["totals"], None
    if known := totals["validation_token_bytes"]:
        lengths = byte_lengths(load_tokenizer(store, shards.tokenizer).json)
        token_bytes = lengths * (totals["validation_bytes"] / known)
    windows = HeldOutWindows(shards.validation.lengths, context, max_windows)
    end_id = shards.details["eos_id"] if document_mask else None
    return HeldOut(shards.corpus, shards.validation, windows, token_bytes, end_id)


READ_AHEAD = 2


class Batch(NamedTuple):
    """A rank's share of a global batch: for each micro-batch, the arguments of the objective by name.

    `targets` is the divisor of the summed loss over all ranks: predicted tokens, examples, or their weights. `tokens`
    counts the tokens read.
    """

    micro_batches: Sequence[Mapping[str, torch.Tensor]]
    targets: float
    tokens: int


def batches_from(number: int, read: Callable[[int], Batch], device: torch.device) -> Iterator[Batch]:
    """Yield global batches `number`, `number + 1`, … without end, on the device; a thread reads ahead."""

    def pinned(number: int) -> Batch:
        batch = read(number)
        if device.type != "cuda":
            return batch
        return batch._replace(
            micro_batches=[{name: part.pin_memory() for name, part in inputs.items()} for inputs in batch.micro_batches]
        )

    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        ahead = [pool.submit(pinned, number + offset) for offset in range(READ_AHEAD)]
        while True:
            number += 1
            batch = ahead.pop(0).result()
            ahead.append(pool.submit(pinned, number + READ_AHEAD - 1))
            yield batch._replace(
                micro_batches=[
                    {name: part.to(device, non_blocking=True) for name, part in inputs.items()}
                    for inputs in batch.micro_batches
                ]
            )


class Dataset(NamedTuple):
    """Training windows by corpus, their order, and held-out windows."""

    windows: list[CorpusWindows]
    order: DataOrder
    held_out: list[HeldOut]

    def close(self) -> None:
        """Release every shard."""
        for shards in [*(w.shards for w in self.windows), *(h.shards for h in self.held_out)]:
            shards.use(())


def open_dataset(
    store: Store, data: PreparedData, training: TrainingConfig, plan: StepPlan, max_held_out: int | None
) -> Dataset:
    """Open the shards; `max_held_out` limits the held-out windows of each corpus.

    Raises `ConfigError` if the shards that training reads at one time exceed this machine's cache of a remote store.
    """
    sets = [open_shards(store, ref.key) for ref in data.shards]
    windows = [_open_windows(store, s, training) for s in sets]
    _check_cache(store, sets, windows, training, plan)
    orders = [
        CorpusOrder(training.seed, s.corpus, w.counts, training.locality) for s, w in zip(sets, windows, strict=True)
    ]
    order = DataOrder(training.seed, orders, [corpus.probability for corpus in plan.corpora])
    held_out = [open_held_out(store, s, training.context, max_held_out, training.masks_documents) for s in sets]
    return Dataset(windows, order, held_out)


def _open_windows(store: Store, shards: ShardSet, training: TrainingConfig) -> CorpusWindows:
    context, end_id = training.context, shards.details["eos_id"]
    if training.packing == "best_fit":

        def pack(number: int) -> PackedShard:
            return pack_shard(read_index(store, shards.key, shards.document_index[number]), context)

        counts = count_packed(store, shards, context)
        return PackedWindows(shards.train, pack, counts, context, end_id, training.masks_documents)
    stride = training.stride or context
    if training.masks_documents:
        return DocumentWindows(shards.train, context, stride, end_id)
    return Windows(shards.train, context, stride)


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
    targets, tokens = np.sum(
        [windows[corpus].count(places[corpora == corpus]) for corpus in np.unique(corpora)], axis=0
    )
    # A batch without predicted tokens has the loss 0, so the divisor must not be 0.
    return Batch(micro_batches, max(1, int(targets)), int(tokens))


def _check_cache(
    store: Store, sets: Sequence[ShardSet], windows: Sequence[CorpusWindows], training: TrainingConfig, plan: StepPlan
) -> None:
    if store.cache_bytes is None:
        return
    needed = sum(s.validation.largest(None) for s in sets)
    for shards, cut, corpus in zip(sets, windows, plan.corpora, strict=True):
        count = None
        if training.locality is not None:
            # Shards between the slowest rank's first group and the fastest rank's last, plus the next group; every
            # group is assumed to have the average size.
            samples = (READ_AHEAD + 2) * training.global_batch * corpus.probability
            group = training.locality * len(cut) / len(cut.counts)
            count = training.locality * (math.ceil(samples / group) + 2)
        needed += shards.train.largest(count)
    if needed > store.cache_bytes:
        advice = f"lower training.locality ({training.locality})" if training.locality else "set training.locality"
        raise ConfigError(
            f"the shards that training reads at a time have up to {needed:,} bytes, but this machine's cache holds "
            f"{store.cache_bytes:,}: raise HEADRACE_CACHE_BYTES, {advice}, or prepare more and smaller shards"
        )
