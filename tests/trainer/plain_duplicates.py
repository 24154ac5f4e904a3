"""Near duplicates without hashing: the similarity of every pair of texts, and which texts a longer one makes
superfluous.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, triu
from scipy.sparse.csgraph import connected_components

from tests.trainer.curation_texts import is_alone

LOWER = {point: chr(point).lower()[0] for point in range(0x20000) if chr(point).lower() != chr(point)}


@cache
def word_pattern() -> re.Pattern[str]:
    """Runs of letters, marks, numbers and underscores, with the apostrophes between letters.

    Each letter of a script without spaces is a word by itself, with its marks.
    """
    points = [chr(point) for point in range(sys.maxunicode + 1)]
    of = {kind: [point for point in points if unicodedata.category(point)[0] == kind] for kind in "LMN"}
    alone, letters = (ranges(point for point in of["L"] if is_alone(point) is each) for each in (True, False))
    marks, numbers = ranges(of["M"]), ranges(of["N"])
    run = f"[{letters}{marks}{numbers}_]+"
    return re.compile(f"[{alone}][{marks}]*|{run}(?:(?<=[{letters}{marks}])['’](?=[{letters}]){run})*")


def ranges(characters: Iterable[str]) -> str:
    """Characters in the order of their numbers, as ranges of a regular expression."""
    runs = (list(run) for _, run in groupby(enumerate(map(ord, characters)), key=lambda each: each[1] - each[0]))
    return "".join(f"{chr(run[0][1])}-{chr(run[-1][1])}" for run in runs)


def said(text: str) -> list[str]:
    """The words in lower case, without symbols, and with straight apostrophes."""
    lowered = unicodedata.normalize("NFC", text).translate(LOWER)
    return [word.replace("’", "'") for word in word_pattern().findall(lowered) if word.strip("_")]


def jaccard(texts: Sequence[str], n: int) -> csr_array:
    """The Jaccard similarity of the sets of n-grams of every two texts, the earlier one's row and the later one's
    column.
    """
    sets = incidence(*grams(texts, n), len(texts))
    sizes = sets.sum(axis=1)
    common = triu(sets @ sets.T, 1, format="coo")
    return csr_array((common.data / (sizes[common.row] + sizes[common.col] - common.data), common.coords), common.shape)


def sharing(keys: NDArray[np.uint64]) -> csr_array:
    """How many keys every two documents share, of keys of shape [documents, bands]; 0 is none."""
    documents, bands = np.nonzero(keys)
    numbers = np.unique(np.stack([bands.astype(np.uint64), keys[documents, bands]]), axis=1, return_inverse=True)[1]
    bands_of = incidence(documents, numbers, len(keys))
    return csr_array(triu(bands_of @ bands_of.T, 1))


def grams(texts: Iterable[str], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Texts, by number, and n-grams that they have, by number. A text of fewer words has one n-gram of them all."""
    known: dict[str, int] = {}
    words = [[known.setdefault(word, len(known)) for word in said(text)] for text in texts]
    flat = np.array([number for each in words for number in each], np.int64)
    text_of = np.repeat(np.arange(len(words)), list(map(len, words)))
    found = flat
    for behind in range(1, n):  # an n-gram is known by the number of its first n - 1 words, and by its last word
        found = np.unique(found[:-1] * len(known) + flat[behind:], return_inverse=True)[1]
    whole = text_of[: len(found)] == text_of[n - 1 :]
    short = [number for number, each in enumerate(words) if 0 < len(each) < n]
    others: dict[tuple[int, ...], int] = {}
    more = [int(found.max()) + 1 + others.setdefault(tuple(words[number]), len(others)) for number in short]
    return np.array([*text_of[: len(found)][whole], *short], np.int64), np.array([*found[whole], *more], np.int64)


def incidence(rows: NDArray[np.int64], columns: NDArray[np.int64], count: int) -> csr_array:
    """A matrix of `count` rows that is 1 where a row has a column."""
    found = csr_array((np.ones(len(rows), np.int32), (rows, columns)), (count, int(columns.max()) + 1))
    found.sum_duplicates()
    found.data[:] = 1
    return found


class Superfluous(NamedTuple):
    """The text that stays in place of another one, their similarity, and the share of the other's n-grams that it
    has.
    """

    original: int
    similarity: float
    contained: float


def superfluous(
    texts: Sequence[str], n: int, candidates: csr_array, least_similarity: float = 0.8, least_contained: float = 0.95
) -> dict[int, Superfluous]:
    """The texts that go if only those pairs are compared, from the longest text to the shortest."""
    sets: list[set[int]] = [set() for _ in texts]
    for text, gram in zip(*grams(texts, n), strict=True):
        sets[text].add(int(gram))
    order = sorted(range(len(texts)), key=lambda text: (-len(sets[text]), text))
    rank = {text: place for place, text in enumerate(order)}
    beside: list[set[int]] = [set() for _ in texts]
    for one, other in zip(*candidates.nonzero(), strict=True):
        beside[one].add(int(other))
        beside[other].add(int(one))
    stay: set[int] = set()
    gone: dict[int, Superfluous] = {}
    for text in order:
        found = [_compared(sets, text, other) for other in sorted(stay & beside[text], key=rank.__getitem__)]
        if enough := [
            each for each in found if each.similarity >= least_similarity or each.contained >= least_contained
        ]:
            gone[text] = max(enough, key=lambda each: each.similarity)  # the first of those, which is the longest
        else:
            stay.add(text)
    return gone


def _compared(sets: Sequence[set[int]], text: int, other: int) -> Superfluous:
    common = len(sets[text] & sets[other])
    return Superfluous(other, common / len(sets[text] | sets[other]), common / len(sets[text]))


def firsts(pairs: csr_array) -> NDArray[np.int64]:
    """The first of those that each document is linked to, directly or through others."""
    cluster = connected_components(pairs, directed=False)[1]
    return np.unique(cluster, return_index=True)[1][cluster]
