"""What documents have in common with evaluation sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.curation.arrays import read_all
from trainer.curation.characters import Hashes, Positions
from trainer.curation.matching import MATCHING, matching_words
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import shingles_of, starts_of
from trainer.store.storage import Store

NOTHING = np.uint64(0)
"""Stands for a word where a text has fewer, and for an n-gram where it has none in common."""

SLOTS_OF_EACH, MOST_SLOTS = 8, 2**24


class Wanted(NamedTuple):
    """The hashes of evaluation sets' n-grams of one length, sorted, and a table that tells most others from them."""

    length: int
    hashes: Hashes
    filled: NDArray[np.bool_]

    def places(self, words: Hashes, word_starts: Positions) -> tuple[Hashes, NDArray[np.intp], Positions]:
        """The hashes of all n-grams of texts, the places of those that are looked for, and where each text's start."""
        from trainer.curation.loops import among

        hashes, starts = shingles_of(words, word_starts, self.length)
        return hashes, np.flatnonzero(among(hashes, self.hashes, self.filled)), starts


def wanted_of(hashes: Mapping[int, Hashes]) -> list[Wanted]:
    """What is looked for, of the sorted hashes of n-grams by their length."""
    from trainer.curation.loops import fill

    return [Wanted(length, each, fill(each, _slots(len(each)))) for length, each in hashes.items()]


def _slots(hashes: int) -> int:
    return int(min(MOST_SLOTS, 1 << (SLOTS_OF_EACH * max(hashes, 1)).bit_length()))


@dataclass(frozen=True)
class Overlap(Measure):
    """How many n-grams each document has in common with evaluation sets, whose hashes are in the store under `key`, and which.

    `first` is the hash of the first one of the shortest that it has in common, and 0 if there is none.
    """

    url: str
    key: str
    name: ClassVar[str] = "overlap"
    version: ClassVar[int] = 2

    def options(self) -> dict[str, Any]:
        return {"key": self.key}  # wherever the store is

    def __call__(self, batch: Batch) -> Rows:
        said = matching_words(batch.matching)
        return find_shared(overlaps(self), said.hashes, said.starts)

    @property
    def longest(self) -> int:
        """The words of the longest n-gram that is looked for."""
        return max(each.length for each in overlaps(self))

    def across(self, lasts: NDArray[np.uint64], firsts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The n-gram shared where one part ends and the next begins, or 0, by `BorderWords` of shape [P, words] each."""
        words = np.concatenate([lasts, firsts], axis=1)
        starts = starts_of((words != NOTHING).sum(axis=1))
        return find_shared(overlaps(self), words[words != NOTHING], starts)["first"]


def find_shared(wanted: list[Wanted], words: Hashes, word_starts: Positions) -> dict[str, NDArray[Any]]:
    """What `Overlap` tells of texts, of which the hashes of the words are given."""
    counts, firsts = np.zeros(len(word_starts) - 1, np.int32), np.full(len(word_starts) - 1, NOTHING)
    for each in wanted:
        hashes, places, starts = each.places(words, word_starts)
        texts, at, times = np.unique(np.searchsorted(starts, places, side="right") - 1, return_index=True, return_counts=True)
        firsts[texts] = np.where(firsts[texts] == NOTHING, hashes[places[at]], firsts[texts])
        counts[texts] += times.astype(np.int32)
    return {"ngrams": counts, "first": firsts}


@dataclass(frozen=True)
class BorderWords(Measure):
    """The first and the last words of each document, so many: what n-grams across the border of two parts are made of.

    A tag or a hyphenated word that the border itself cuts in two is not put together again.
    """

    words: int
    name: ClassVar[str] = "borders"
    version: ClassVar[int] = 1 + MATCHING

    def __call__(self, batch: Batch) -> Rows:
        said = matching_words(batch.matching)
        found = np.full((len(batch.documents), 2 * self.words), NOTHING)
        for text, (start, end) in enumerate(pairwise(said.starts.tolist())):
            count = min(self.words, end - start)
            found[text, :count] = said.hashes[start : start + count]
            found[text, 2 * self.words - count :] = said.hashes[end - count : end]
        return {"firsts": found[:, : self.words], "lasts": found[:, self.words :]}


@cache
def overlaps(of: Overlap) -> list[Wanted]:
    """What is looked for of evaluation sets."""
    return wanted_of(read_hashes(Store(of.url), of.key))


def read_hashes(store: Store, key: str) -> dict[int, Hashes]:
    """The hashes of evaluation sets by the length of their n-grams."""
    return {int(name): hashes for name, hashes in read_all(store, key).items()}
