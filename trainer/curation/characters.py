"""The kind and the lower case of each code point, from Python's Unicode data."""

import sys
import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.uint8] | NDArray[np.uint32]
Positions = NDArray[np.int64]
Hashes = NDArray[np.uint64]

LINE_END, SPACE, OTHER, APOSTROPHE, HYPHEN, UNDERSCORE, NUMBER, MARK, LETTER, ALONE = range(10)
"""Kinds of characters. Kinds before OTHER are white space; runs of kinds from UNDERSCORE on are words.

A letter that is ALONE is a word of its own: its script puts no spaces between words. HYPHEN is used only where text is
compared with evaluation sets, see `matching` in texts.py.
"""

WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0x1780, 0x17FF),
    (0x3005, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
"""First and last code points of scripts without spaces: Thai, Lao, Burmese, Khmer; kana and Bopomofo; Chinese."""

APOSTROPHES = "'\u2019"
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters at which `str.splitlines` splits."""

SEVERAL = sys.maxunicode + 1
"""Folded values from here on stand for several characters."""


class Spelling(NamedTuple):
    """How words are compared, by code point: the kind of each character, and its folded form, where 0 is nothing.

    A folded value of SEVERAL + n stands for the characters `[starts[n], starts[n + 1])` of `several`.
    """

    kinds: NDArray[np.uint8]
    folded: NDArray[np.uint32]
    starts: Positions
    several: NDArray[np.uint32]


class NormalizedWords(NamedTuple):
    """The words of texts in compared form: characters `[first, end)`; text t has words `[starts[t], starts[t + 1])`.

    They are runs of letters, numbers, marks and underscores, with apostrophes between letters; a run without a letter,
    number or mark is not a word. A letter of a script without spaces is `alone`: a word of its own with its marks.
    """

    first: Positions
    end: Positions
    hashes: Hashes
    """Hashes of the words with each character folded."""
    alone: NDArray[np.bool_]
    starts: Positions


class Words(NamedTuple):
    """Runs of characters between white space: `[first, end)` each; those of text t are `[starts[t], starts[t + 1])`.

    The papers count words in this way. A symbol is a word without letter, number or mark.
    """

    first: Positions
    end: Positions
    hashes: Hashes
    symbol: NDArray[np.bool_]
    starts: Positions


class Lines(NamedTuple):
    """The lines of all texts as split by `str.splitlines`: characters `[first, end)`, without the line end."""

    first: Positions
    end: Positions
    hashes: Hashes
    starts: Positions


LAST_CASED = 0x1FFFF
"""No character after this one has a lower case."""


@cache
def kinds_of_characters() -> NDArray[np.uint8]:
    """The kind of each code point."""
    categories = "".join(map(unicodedata.category, map(chr, range(sys.maxunicode + 1))))
    majors = np.frombuffer(categories.encode(), "S1")[::2]
    kinds = np.full(len(majors), OTHER, np.uint8)
    for major, kind in ((b"L", LETTER), (b"M", MARK), (b"N", NUMBER)):
        kinds[majors == major] = kind
    spaces = [point for point in range(LAST_CASED) if chr(point).isspace()]
    for points, kind in (
        (spaces, SPACE),
        (list(map(ord, LINE_ENDS)), LINE_END),
        (list(map(ord, APOSTROPHES)), APOSTROPHE),
    ):
        kinds[points] = kind
    kinds[ord("_")] = UNDERSCORE
    for first, last in WITHOUT_SPACES:
        of_script = kinds[first : last + 1]
        of_script[of_script == LETTER] = ALONE
    return kinds


@cache
def lower_case() -> NDArray[np.uint32]:
    """The lower case of each code point; for U+0130, whose lower case has two characters, the first."""
    lower = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    lower[: LAST_CASED + 1] = [ord(chr(point).lower()[0]) for point in range(LAST_CASED + 1)]
    return lower


@cache
def plain_spelling() -> Spelling:
    """The spelling of words in lower case; a curly apostrophe equals a straight one."""
    folded = lower_case().copy()
    folded[list(map(ord, APOSTROPHES))] = ord("'")
    return Spelling(kinds_of_characters(), folded, np.zeros(1, np.int64), np.zeros(0, np.uint32))
