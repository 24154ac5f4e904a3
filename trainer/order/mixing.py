"""The data order as arithmetic: sample number k is a pure function of (seed, k).

Nothing is shuffled or remembered, so any sample can be had at any time at the same cost, and a resumed run sees what an
uninterrupted one would have seen.

The corpus of sample k is drawn in proportion to the weights by systematic (stratified) rather than independent draws: the
first n samples hold n * p_i of corpus i, to within a few. Only so is the number of earlier draws from a corpus known
without counting them, which each-window-once-a-pass needs. The draws are shuffled inside blocks.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from trainer.order.corpus_order import CorpusOrder
from trainer.order.permutation import I64, U64, permute, stable_key

Draws = tuple[I64, I64, U64]
"""Of each sample its corpus, its window, and how many earlier samples are of the same corpus."""

BLOCK = 4096
"""Samples whose draws are shuffled together."""

RESOLUTION_BITS = 31
"""A corpus's share is rounded to this many binary digits."""


class DataOrder:
    """The order in which the windows of several corpora are seen.

    `weights` are proportional to the corpora's probabilities, which the step plan has (plan.py: p ~ tokens ** alpha).
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
        """By corpus, the shards that these samples may come from, and then those that come next."""
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
