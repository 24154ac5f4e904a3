"""A batch of documents: their characters, and the words and lines that these make up, each with a hash of what it says.

Hashes have 64 well-mixed bits, the same on every machine.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import (
    APOSTROPHE,
    LETTER,
    MARK,
    OTHER,
    UNDERSCORE,
    Hashes,
    Points,
    Positions,
    kinds_of_characters,
    lower_case,
)


class Words(NamedTuple):
    """The words of all texts: characters `[first, end)` each, those of text t at `[starts[t], starts[t + 1])`.

    A word is a run of letters, numbers, marks and underscores, with the apostrophes between its letters, or any other single
    character that is no white space. A symbol is a word without letter, number or mark.
    """

    first: Positions
    end: Positions
    hashes: Hashes
    folded: Hashes
    """Those of the words with each character in lower case."""
    symbol: NDArray[np.bool_]
    starts: Positions


class Lines(NamedTuple):
    """The lines of all texts as `str.splitlines` cuts them: characters `[first, end)` each, without what ends the line."""

    first: Positions
    end: Positions
    hashes: Hashes
    starts: Positions


class Texts:
    """Documents, given as valid UTF-8."""

    def __init__(self, documents: Sequence[bytes]) -> None:
        self.documents = documents

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def strings(self) -> list[str]:
        """The documents as Python's strings."""
        return [document.decode() for document in self.documents]

    @cached_property
    def points(self) -> Points:
        """The code points of all texts, one text after the other; of ASCII alone they take a byte each."""
        if all(document.isascii() for document in self.documents):
            return np.frombuffer(b"".join(self.documents), np.uint8)
        return np.frombuffer("".join(self.strings).encode("utf-32-le"), np.dtype("<u4"))

    @cached_property
    def starts(self) -> Positions:
        """Where in `points` each text starts; one more for the end of the last."""
        return starts_of(np.fromiter(map(len, self.strings), np.int64, len(self)))

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """The kind of each of these characters."""
        return kinds_of_characters()[self.points]

    @cached_property
    def words(self) -> Words:
        """The words of all texts."""
        from trainer.curation.loops import read_words

        visible, apart = self.kinds >= OTHER, ~self._joined()
        first, last = np.flatnonzero(visible & apart[:-1]), np.flatnonzero(visible & apart[1:])
        del visible, apart  # of a document of any size they take as much as its text, each
        end = np.add(last, 1, out=last)
        hashes, folded, symbol = read_words(self.points, lower_case(), self.kinds, first, end)
        return Words(first, end, hashes, folded, symbol, np.searchsorted(first, self.starts))

    def _joined(self) -> NDArray[np.bool_]:
        """Whether each character is of one word with the one before it; one more for the end of the last text."""
        kinds = self.kinds
        in_word = kinds >= UNDERSCORE
        marks = np.flatnonzero(kinds == APOSTROPHE)
        marks = marks[~np.isin(marks, self.starts) & ~np.isin(marks + 1, self.starts)]
        in_word[marks] = (kinds[marks - 1] >= MARK) & (kinds[marks + 1] == LETTER)
        joined = np.zeros(len(kinds) + 1, np.bool_)
        np.logical_and(in_word[1:], in_word[:-1], out=joined[1:-1])
        joined[self.starts] = False
        return joined

    @cached_property
    def lines(self) -> Lines:
        """The lines of all texts."""
        from trainer.curation.loops import count_lines, find_lines

        starts = starts_of(count_lines(self.points, self.starts, self.kinds))
        total = int(starts[-1])
        lines = Lines(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.uint64), starts)
        find_lines(self.points, self.starts, self.kinds, *lines)
        return lines


def shingles(texts: Texts, n: int) -> tuple[Hashes, Positions]:
    """Hashes of every n successive words in lower case, symbols left out; those of text t at `[starts[t], starts[t + 1])`.

    A text of fewer words has one of them all, and a text without words none.
    """
    return shingles_of(*said_words(texts), n)


def said_words(texts: Texts) -> tuple[Hashes, Positions]:
    """The hashes of the words in lower case, symbols left out; those of text t at `[starts[t], starts[t + 1])`."""
    words = texts.words
    says = ~words.symbol
    return words.folded[says], starts_of(says)[words.starts]


def shingles_of(folded: Hashes, word_starts: Positions, n: int) -> tuple[Hashes, Positions]:
    """The same of texts whose `said_words` are known."""
    from trainer.curation.loops import find_shingles

    counts = np.diff(word_starts)
    starts = starts_of(np.maximum(counts - n + 1, np.minimum(counts, 1)))
    hashes = np.empty(int(starts[-1]), np.uint64)
    find_shingles(folded, word_starts, n, starts, hashes)
    return hashes, starts


def starts_of(counts: NDArray[np.int64] | NDArray[np.bool_]) -> Positions:
    """Where the items of each of several things start among those of all; one more for the end."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def share(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each part by its whole; of nothing, 0."""
    return parts / np.maximum(wholes, 1)
