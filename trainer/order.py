"""The data order as arithmetic: sample number k is a pure function of (seed, k).

Nothing is shuffled or remembered, so any sample can be had at any time at the same cost, and a resumed run sees what an
uninterrupted one would have seen.

The corpus of sample k is drawn in proportion to the weights by systematic (stratified) rather than independent draws: the
first n samples hold n * p_i of corpus i, to within a few. Only so is the number of earlier draws from a corpus known
without counting them, which each-window-once-a-pass needs. The draws are shuffled inside blocks.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

BLOCK = 4096
"""Samples whose draws are shuffled together."""

RESOLUTION_BITS = 31
"""A corpus's share is rounded to this many binary digits."""

FEISTEL_ROUNDS = 6


class DataOrder:
    """The order in which the windows of several corpora are seen.

    `names` name the corpora, `weights` are proportional to their probabilities, `windows` are their sizes.
    """

    def __init__(self, seed: int, names: Sequence[str], weights: Sequence[float], windows: Sequence[int]) -> None:
        self._seed, self._names, self._windows = seed, list(names), list(windows)
        self._shares = _shares(weights)
        self._block = lru_cache(maxsize=4)(self._make_block)

    def samples(self, start: int, count: int) -> tuple[I64, I64]:
        """Corpus number and window number of samples `start` to `start + count - 1`, each of shape [count]."""
        first, last = start // BLOCK, (start + count - 1) // BLOCK
        blocks = [self._block(number) for number in range(first, last + 1)]
        skip = start - first * BLOCK
        corpora = np.concatenate([corpora for corpora, _ in blocks])[skip : skip + count]
        windows = np.concatenate([windows for _, windows in blocks])[skip : skip + count]
        return corpora, windows

    def _make_block(self, number: int) -> tuple[I64, I64]:
        draws = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.uint64)
        corpora, turns = _deal(draws, self._shares)
        places = np.arange(BLOCK, dtype=np.uint64)
        shuffled = corpora[permute(places, BLOCK, stable_key(self._seed, "block", number))]
        windows = np.empty(BLOCK, dtype=np.int64)
        for corpus in np.unique(shuffled):
            windows[shuffled == corpus] = self._windows_of(int(corpus), turns[corpora == corpus])
        return shuffled, windows

    def _windows_of(self, corpus: int, turns: U64) -> I64:
        """The windows that a corpus gives at its turns, each window once a pass."""
        size = np.uint64(self._windows[corpus])
        windows = np.empty(len(turns), dtype=np.int64)
        for number in np.unique(turns // size):
            now = turns // size == number
            key = stable_key(self._seed, "window", self._names[corpus], int(number))
            windows[now] = permute(turns[now] % size, int(size), key)
        return windows


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


def _shares(weights: Sequence[float]) -> list[int]:
    """Share of each corpus among itself and those after it, in units of 2**-RESOLUTION_BITS; the last has all."""
    unit = 1 << RESOLUTION_BITS
    remaining = [sum(weights[number:]) for number in range(len(weights))]
    shares = [round(weight / rest * unit) for weight, rest in zip(weights, remaining, strict=True)]
    return [*(min(max(share, 1), unit - 1) for share in shares[:-1]), unit]


def _deal(draws: U64, shares: Sequence[int]) -> tuple[I64, U64]:
    """The corpus of each draw, and how many earlier draws fell to the same corpus.

    Of the draws 0 .. n-1 that reach a corpus, floor(n * share) stay there and the rest go on to the next; both counts
    are known for every n.
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


def _mix(values: U64) -> U64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of the output bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def stable_key(*parts: object) -> int:
    """64 bits decided by the parts, the same in every process and on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
