"""A batch of documents: their characters, and the words and lines that these make up, each with a hash of what it says.

Hashes have 64 well-mixed bits, the same on every machine.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import (
    Hashes,
    Points,
    Positions,
    Said,
    Spelling,
    kinds_of_characters,
    plain_spelling,
)


class Words(NamedTuple):
    """What stands between white space: characters `[first, end)` each, those of text t at `[starts[t], starts[t + 1])`.

    So the papers count words. A symbol is a word without letter, number or mark.
    """

    first: Positions
    end: Positions
    hashes: Hashes
    symbol: NDArray[np.bool_]
    starts: Positions


class Lines(NamedTuple):
    """The lines of all texts as `str.splitlines` cuts them: characters `[first, end)` each, without what ends the
    line.
    """

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
        """The words of all texts, as they are counted."""
        from trainer.curation.loops import count_words, find_words

        starts = starts_of(count_words(self.kinds, self.starts))
        total = int(starts[-1])
        first, end, hashes = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.uint64)
        words = Words(first, end, hashes, np.empty(total, np.bool_), starts)
        find_words(self.points, self.starts, self.kinds, *words)
        return words

    def said(self, spelling: Spelling | None = None) -> Said:
        """The words of all texts as they are compared: in lower case, unless another spelling is given."""
        from trainer.curation.loops import find_said

        return find_said(self.points, self.starts, spelling or plain_spelling())

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
    """Hashes of every n successive words, as they are compared; those of text t at `[starts[t], starts[t + 1])`.

    A text of fewer words has one of them all, and a text without words none.
    """
    said = texts.said()
    return shingles_of(said.hashes, said.starts, n)


def shingles_of(words: Hashes, word_starts: Positions, n: int) -> tuple[Hashes, Positions]:
    """The same of texts of which the hashes of the words are known."""
    from trainer.curation.loops import find_shingles

    counts = np.diff(word_starts)
    starts = starts_of(np.maximum(counts - n + 1, np.minimum(counts, 1)))
    hashes = np.empty(int(starts[-1]), np.uint64)
    find_shingles(words, word_starts, n, starts, hashes)
    return hashes, starts


def starts_of(counts: NDArray[np.int64] | NDArray[np.bool_]) -> Positions:
    """Where the items of each of several things start among those of all; one more for the end."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def share(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each part by its whole; of nothing, 0."""
    return parts / np.maximum(wholes, 1)
