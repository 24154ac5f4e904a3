"""What documents have in common with evaluation sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.curation.arrays import read_all
from trainer.curation.characters import Hashes, Positions
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import Texts, said_words, shingles_of, starts_of
from trainer.store.storage import Store


@dataclass(frozen=True)
class Overlap(Measure):
    """How many n-grams each document has in common with evaluation sets, whose hashes are in the store, under `key`."""

    url: str
    key: str
    name: ClassVar[str] = "overlap"

    def options(self) -> dict[str, Any]:
        return {"key": self.key}  # wherever the store is

    def __call__(self, batch: Batch) -> Rows:
        return {"ngrams": batch.composed(self._shared)}

    def across(self, lasts: NDArray[np.uint64], firsts: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether texts share one where one part ends and the next begins, by `BorderWords`, of shape [P, words] each."""
        words = np.concatenate([lasts, firsts], axis=1)
        return self._count(words[words != NO_WORD], starts_of((words != NO_WORD).sum(axis=1))) > 0

    def _shared(self, texts: Texts) -> NDArray[np.int32]:
        return self._count(*said_words(texts))

    def _count(self, folded: NDArray[np.uint64], word_starts: NDArray[np.int64]) -> NDArray[np.int32]:
        return count_shared(overlaps(self), folded, word_starts)


def count_shared(looked_for: Mapping[int, Hashes], folded: Hashes, word_starts: Positions) -> NDArray[np.int32]:
    """How many n-grams texts, whose `said_words` are given, have of those that are looked for, by their length."""
    found = np.zeros(len(word_starts) - 1, np.int32)
    for ngram, wanted in looked_for.items():
        hashes, starts = shingles_of(folded, word_starts, ngram)
        found += np.diff(starts_of(np.isin(hashes, wanted))[starts]).astype(np.int32)
    return found


NO_WORD = np.uint64(0)
"""Stands for a word where a text has fewer."""


@dataclass(frozen=True)
class BorderWords(Measure):
    """The first and the last words of each document, so many: what n-grams across the border of two parts are made of."""

    words: int
    name: ClassVar[str] = "borders"

    def __call__(self, batch: Batch) -> Rows:
        found = batch.composed(self._find)
        return {"firsts": found[:, : self.words], "lasts": found[:, self.words :]}

    def _find(self, texts: Texts) -> NDArray[np.uint64]:
        folded, starts = said_words(texts)
        found = np.full((len(texts), 2 * self.words), NO_WORD)
        for text, (start, end) in enumerate(pairwise(starts.tolist())):
            count = min(self.words, end - start)
            found[text, :count] = folded[start : start + count]
            found[text, 2 * self.words - count :] = folded[end - count : end]
        return found


@cache
def overlaps(of: Overlap) -> dict[int, NDArray[np.uint64]]:
    """The hashes of evaluation sets by the length of their n-grams."""
    store = Store(of.url)
    return {int(name): hashes for name, hashes in read_all(store, of.key).items()}
