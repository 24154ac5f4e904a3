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
    LINE_END,
    MARK,
    NUMBER,
    OTHER,
    UNDERSCORE,
    kinds_of_characters,
    lower_case,
)
from trainer.curation.compiled import compiled

START, FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)

Positions = NDArray[np.int64]
Hashes = NDArray[np.uint64]


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
    def points(self) -> NDArray[np.uint32]:
        """The code points of all texts, one text after the other."""
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
    def lowered(self) -> NDArray[np.uint32]:
        """The code points in lower case, each by itself."""
        return lower_case()[self.points]

    @cached_property
    def words(self) -> Words:
        """The words of all texts."""
        visible, joined = self.kinds >= OTHER, self._joined()
        first, end = np.flatnonzero(visible & ~joined[:-1]), np.flatnonzero(visible & ~joined[1:]) + 1
        hashes, folded, symbol = _read_words(self.points, self.lowered, self.kinds, first, end)
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
        starts = starts_of(_count_lines(self.points, self.starts, self.kinds))
        total = int(starts[-1])
        lines = Lines(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.uint64), starts)
        _find_lines(self.points, self.starts, self.kinds, *lines)
        return lines


def shingles(texts: Texts, n: int) -> tuple[Hashes, Positions]:
    """Hashes of every n successive words in lower case, symbols left out; those of text t at `[starts[t], starts[t + 1])`.

    A text of fewer words has one of them all, and a text without words none.
    """
    words = texts.words
    says = ~words.symbol
    ranks = starts_of(says)[words.starts]
    counts = np.diff(ranks)
    starts = starts_of(np.maximum(counts - n + 1, np.minimum(counts, 1)))
    hashes = np.empty(int(starts[-1]), np.uint64)
    _find_shingles(words.folded[says], ranks, n, starts, hashes)
    return hashes, starts


def starts_of(counts: NDArray[np.int64] | NDArray[np.bool_]) -> Positions:
    """Where the items of each of several things start among those of all; one more for the end."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def share(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each part by its whole; of nothing, 0."""
    return parts / np.maximum(wholes, 1)


@compiled
def _mix(value: np.uint64) -> np.uint64:
    """Spread every bit over all others: the end of SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def _read_words(
    points: NDArray[np.uint32], lowered: NDArray[np.uint32], kinds: NDArray[np.uint8], first: Positions, end: Positions
) -> tuple[Hashes, Hashes, NDArray[np.bool_]]:
    """The hash of each word as it is and in lower case, and whether it is a symbol."""
    hashes, folded, symbol = np.empty(len(first), np.uint64), np.empty(len(first), np.uint64), np.empty(len(first), np.bool_)
    for word in range(len(first)):
        own, low, says = START, START, False
        for at in range(first[word], end[word]):
            own = (own ^ np.uint64(points[at])) * FACTOR
            low = (low ^ np.uint64(lowered[at])) * FACTOR
            says |= kinds[at] >= NUMBER
        hashes[word], folded[word], symbol[word] = _mix(own), _mix(low), not says
    return hashes, folded, symbol


@compiled
def _end_of_line(kinds: NDArray[np.uint8], at: int, stop: int) -> int:
    """Where the text of the line that starts here ends."""
    while at < stop and kinds[at] != LINE_END:
        at += 1
    return at


@compiled
def _behind_line_end(points: NDArray[np.uint32], at: int, stop: int) -> int:
    """Where the next line starts, or the text's end."""
    if at + 1 < stop and points[at] == 13 and points[at + 1] == 10:  # the two characters of Windows end one line
        return at + 2
    return min(at + 1, stop)


@compiled
def _count_lines(points: NDArray[np.uint32], starts: Positions, kinds: NDArray[np.uint8]) -> Positions:
    counts = np.zeros(len(starts) - 1, np.int64)
    for text in range(len(counts)):
        at, stop = starts[text], starts[text + 1]
        while at < stop:
            at = _behind_line_end(points, _end_of_line(kinds, at, stop), stop)
            counts[text] += 1
    return counts


@compiled
def _find_lines(
    points: NDArray[np.uint32], starts: Positions, kinds: NDArray[np.uint8],
    first: Positions, end: Positions, hashes: Hashes, line_starts: Positions,
) -> None:  # fmt: skip
    for text in range(len(starts) - 1):
        at, stop = starts[text], starts[text + 1]
        for line in range(line_starts[text], line_starts[text + 1]):
            first[line], end[line] = at, _end_of_line(kinds, at, stop)
            own = START
            for at in range(first[line], end[line]):
                own = (own ^ np.uint64(points[at])) * FACTOR
            hashes[line] = _mix(own)
            at = _behind_line_end(points, end[line], stop)


@compiled
def _find_shingles(folded: Hashes, word_starts: Positions, n: int, starts: Positions, hashes: Hashes) -> None:
    """The hash of words w1 .. wn is that of w1 * FACTOR^(n - 1) + ... + wn."""
    leaving = np.uint64(1)
    for _ in range(n):
        leaving *= FACTOR
    for text in range(len(word_starts) - 1):
        shingle, total = starts[text], np.uint64(0)
        for word in range(word_starts[text], word_starts[text + 1]):
            total = total * FACTOR + folded[word]
            behind = word - n
            if behind >= word_starts[text]:
                total -= folded[behind] * leaving
            if behind + 1 >= word_starts[text]:
                hashes[shingle] = _mix(total)
                shingle += 1
        if shingle < starts[text + 1]:
            hashes[shingle] = _mix(total)
