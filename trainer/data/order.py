"""The data order as arithmetic: sample k is a pure function of (seed, k).

With a locality of G, the shards are permuted, and windows are mixed only within groups of G shards. Training then reads
few shards at a time, so a corpus can be larger than the disk.

Nothing is shuffled in memory or saved. Any sample costs the same to find, and a resumed run reads exactly the samples
that an uninterrupted run would read.

Corpora are drawn in proportion to their weights, by systematic (stratified) rather than independent draws: among the
first n draws, n * p_i are of corpus i, to within a few. The number of earlier draws from a corpus is therefore known
without counting, so each window can be used once a pass. The draws are shuffled inside blocks.

`EpochOrder` orders labelled data and conversations: global batch `number` is a pure function of the seed, the examples'
lengths and the batch size. Each epoch permutes the examples, sorts each stretch of `GROUP` batches by length, cuts it
into batches and permutes those. Batches need little padding, an epoch reads each example once, and finding a batch
costs the same at any step.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

FEISTEL_ROUNDS = 6


def permute(places: U64, size: int, key: int) -> U64:
    """A keyed permutation of range(size), applied to an array of places.

    A Feistel network over the next power of four, walked until the value falls inside the range (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002).
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(stable_key(key, round_number)) for round_number in range(FEISTEL_ROUNDS)]
    values = places.copy()
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        values[outside] = (left << half) | right
        outside = values >= np.uint64(size)
    return values


def stable_key(*parts: object) -> int:
    """A 64-bit key from the parts, the same in every process and on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(values: U64) -> U64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of the output bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Group(NamedTuple):
    """Shards whose windows are mixed: `first` is the turn of the pass at which they begin, `windows` their count."""

    first: int
    windows: int
    key: int
    shards: I64


class CorpusOrder:
    """The window that a corpus gives at its turn 0, 1, …

    `counts` are the windows of each shard; windows are numbered through all shards. `locality` is the number of shards
    in a group; with None, all shards form one group.
    """

    def __init__(self, seed: int, name: str, counts: Sequence[int], locality: int | None = None) -> None:
        self._seed, self._name, self._locality = seed, name, locality
        self._counts = np.array(counts, dtype=np.int64)
        self._offsets = np.cumsum(self._counts) - self._counts
        self._size = int(self._counts.sum())
        self._groups = lru_cache(maxsize=4)(self._make_groups)
        self._shards = lru_cache(maxsize=4)(self._find_shards)

    def windows(self, turns: U64) -> I64:
        """The windows at these turns; same shape."""
        found = np.empty(len(turns), dtype=np.int64)
        passes, groups = self._locate(turns)
        for number, index in {*zip(passes.tolist(), groups.tolist(), strict=True)}:
            here = (passes == number) & (groups == index)
            group = self._groups(number)[index]
            places = turns[here] % np.uint64(self._size) - np.uint64(group.first)
            found[here] = self._windows_of(group, permute(places, group.windows, group.key).astype(np.int64))
        return found

    def shards(self, first: int, last: int) -> Sequence[int]:
        """The shards of the groups that turns `first` to `last` belong to, then those of the next group; each once."""
        passes, groups = self._locate(np.array([first, last], dtype=np.uint64))
        return self._shards(*zip(passes.tolist(), groups.tolist(), strict=True))

    def _locate(self, turns: U64) -> tuple[I64, I64]:
        """The pass of each turn, and the group within the pass."""
        passes = (turns // np.uint64(self._size)).astype(np.int64)
        places = (turns % np.uint64(self._size)).astype(np.int64)
        groups = np.empty(len(turns), dtype=np.int64)
        for number in np.unique(passes):
            ends = [group.first + group.windows for group in self._groups(int(number))]
            groups[passes == number] = np.searchsorted(ends, places[passes == number], side="right")
        return passes, groups

    def _make_groups(self, number: int) -> list[Group]:
        """The non-empty groups of a pass."""
        count = len(self._counts)
        if self._locality is None:
            return [Group(0, self._size, stable_key(self._seed, "window", self._name, number), np.arange(count))]
        shards = permute(np.arange(count, dtype=np.uint64), count, stable_key(self._seed, "shard", self._name, number))
        groups: list[Group] = []
        first = 0
        for start in range(0, count, self._locality):
            members = shards[start : start + self._locality].astype(np.int64)
            if windows := int(self._counts[members].sum()):
                groups.append(
                    Group(first, windows, stable_key(self._seed, "window", self._name, number, start), members)
                )
                first += windows
        return groups

    def _windows_of(self, group: Group, places: I64) -> I64:
        """The windows at these places, counted through the group's shards."""
        counts = self._counts[group.shards]
        ends = np.cumsum(counts)
        index = np.searchsorted(ends, places, side="right")
        return self._offsets[group.shards[index]] + places - (ends - counts)[index]

    def _find_shards(self, first: tuple[int, int], last: tuple[int, int]) -> Sequence[int]:
        (number, index), found = first, list[int]()
        while (number, index) <= last:
            found += self._groups(number)[index].shards.tolist()
            number, index = (number, index + 1) if index + 1 < len(self._groups(number)) else (number + 1, 0)
        found += self._groups(number)[index].shards.tolist()
        return tuple(dict.fromkeys(found))


Draws = tuple[I64, I64, U64]
"""For each sample: its corpus, its window, and how many earlier samples are from the same corpus."""

BLOCK = 4096
"""Samples whose draws are shuffled together."""

RESOLUTION_BITS = 31
"""A corpus's share is rounded to this many bits."""


class DataOrder:
    """The order in which the windows of several corpora are seen.

    `weights` are proportional to the corpora's probabilities in the step plan (p ~ tokens ** alpha).
    """

    def __init__(self, seed: int, corpora: Sequence[CorpusOrder], weights: Sequence[float]) -> None:
        self._seed, self._corpora = seed, list(corpora)
        self._shares = _shares(weights)
        self._block = lru_cache(maxsize=4)(self._make_block)

    def samples(self, start: int, count: int) -> tuple[I64, I64]:
        """Corpus number and window number of samples `start` to `start + count - 1`, each of shape [count]."""
        corpora, windows, _ = self._draws(start, count)
        return corpora, windows

    def shards(self, start: int, count: int) -> dict[int, Sequence[int]]:
        """By corpus, the shards that these samples may come from, followed by the shards read next."""
        corpora, _, turns = self._draws(start, count)
        drawn = {int(corpus): turns[corpora == corpus] for corpus in np.unique(corpora)}
        return {corpus: self._corpora[corpus].shards(int(its.min()), int(its.max())) for corpus, its in drawn.items()}

    def _draws(self, start: int, count: int) -> Draws:
        first, last = start // BLOCK, (start + count - 1) // BLOCK
        blocks = [self._block(number) for number in range(first, last + 1)]
        skip = start - first * BLOCK
        corpora, windows, turns = (np.concatenate(parts)[skip : skip + count] for parts in zip(*blocks, strict=True))
        return corpora, windows, turns

    def _make_block(self, number: int) -> Draws:
        draws = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.uint64)
        corpora, turns = _deal(draws, self._shares)
        places = np.arange(BLOCK, dtype=np.uint64)
        shuffled = corpora[permute(places, BLOCK, stable_key(self._seed, "block", number))]
        windows, taken = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.uint64)
        for corpus in np.unique(shuffled):
            here = shuffled == corpus
            taken[here] = turns[corpora == corpus]
            windows[here] = self._corpora[int(corpus)].windows(taken[here])
        return shuffled, windows, taken


def _shares(weights: Sequence[float]) -> list[int]:
    """Share of each corpus among itself and the later ones, in units of 2**-RESOLUTION_BITS; the last has all."""
    unit = 1 << RESOLUTION_BITS
    remaining = [math.fsum(weights[number:]) for number in range(len(weights))]  # `sum` rounds otherwise since 3.12
    shares = [round(weight / rest * unit) for weight, rest in zip(weights, remaining, strict=True)]
    return [*(min(max(share, 1), unit - 1) for share in shares[:-1]), unit]


def _deal(draws: U64, shares: Sequence[int]) -> tuple[I64, U64]:
    """The corpus of each draw, and the number of earlier draws from the same corpus.

    Of the draws 0 .. n-1 that reach a corpus, floor(n * share) stay there and the others move to the next corpus. Both
    counts are known for every n.
    """
    corpora = np.full(len(draws), -1, dtype=np.int64)
    turns = np.zeros_like(draws)
    reached = draws.copy()
    for corpus, share in enumerate(shares):
        before, after = _scaled(reached, share), _scaled(reached + np.uint64(1), share)
        stays = (corpora == -1) & (after > before)
        corpora[stays], turns[stays] = corpus, before[stays]
        reached = reached - before
    return corpora, turns


def _scaled(numbers: U64, share: int) -> U64:
    """floor(numbers * share / 2**RESOLUTION_BITS), without overflow."""
    bits, mask = np.uint64(RESOLUTION_BITS), np.uint64((1 << RESOLUTION_BITS) - 1)
    return (numbers >> bits) * np.uint64(share) + (((numbers & mask) * np.uint64(share)) >> bits)


FORMAT = 2
"""Part of a run's identity: a run that began with another format of the order cannot resume with this one."""

GROUP = 8
"""Batches sorted together: with batches of 8, padding falls from 36 % to 7 %, and a batch still mixes lengths."""


class EpochOrder:
    """The examples of each global batch; one batch of an epoch may be smaller."""

    def __init__(self, seed: int, lengths: NDArray[np.int64], global_batch: int, by_length: bool) -> None:
        self._seed, self._lengths, self._batch, self._by_length = seed, lengths, global_batch, by_length

    def examples(self, number: int) -> NDArray[np.int64]:
        """The examples of global batch `number`, longest first; shape [at most global_batch]."""
        size, batch = len(self._lengths), self._batch
        epoch, index = divmod(number, -(-size // batch))
        first = index - index % GROUP if self._by_length else index
        places = np.arange(
            first * batch, min((first + GROUP if self._by_length else first + 1) * batch, size), dtype=np.uint64
        )
        examples = permute(places, size, stable_key(self._seed, "example", epoch)).astype(np.int64)
        # Stable, so that examples of equal length keep the permuted order.
        examples = examples[np.argsort(-self._lengths[examples], kind="stable")]
        batches = -(-len(examples) // batch)
        turn = np.array([index - first], dtype=np.uint64)
        chosen = int(permute(turn, batches, stable_key(self._seed, "batch", epoch, first))[0])
        return examples[chosen * batch : (chosen + 1) * batch]
