"""Near duplicates without hashing: the Jaccard similarity of every pair of texts, and clusters by walking through pairs."""

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, triu
from scipy.sparse.csgraph import connected_components

LOWER = {point: chr(point).lower()[0] for point in range(0x20000) if chr(point).lower() != chr(point)}


@cache
def word_pattern() -> re.Pattern[str]:
    """Runs of letters, marks, numbers and underscores, with the apostrophes between letters."""
    letters, marks, numbers = map(characters, "LMN")
    return re.compile(
        f"[{letters}{marks}{numbers}_]+(?:(?<=[{letters}{marks}])['’](?=[{letters}])[{letters}{marks}{numbers}_]+)*"
    )


def characters(category: str) -> str:
    """All characters of a category, as ranges of a regular expression."""
    points = (point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == category)
    runs = (list(run) for _, run in groupby(enumerate(points), key=lambda each: each[1] - each[0]))
    return "".join(f"{chr(run[0][1])}-{chr(run[-1][1])}" for run in runs)


def said(text: str) -> list[str]:
    """The words in lower case, without symbols."""
    lowered = unicodedata.normalize("NFC", text).translate(LOWER)
    return [word for word in word_pattern().findall(lowered) if word.strip("_")]


def jaccard(texts: Sequence[str], n: int) -> csr_array:
    """The Jaccard similarity of the sets of n-grams of every two texts, the earlier one's row and the later one's column."""
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


def firsts(pairs: csr_array) -> NDArray[np.int64]:
    """The first of those that each document is linked to, directly or through others."""
    cluster = connected_components(pairs, directed=False)[1]
    return np.unique(cluster, return_index=True)[1][cluster]
