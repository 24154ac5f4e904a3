"""What kind of character each code point is, and which is its lower case, as Python's Unicode data tell."""

import sys
import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.uint8] | NDArray[np.uint32]
Positions = NDArray[np.int64]
Hashes = NDArray[np.uint64]

UNICODE = unicodedata.unidata_version
"""Another version knows more letters, so that words, and all that is measured of them, may differ."""

LINE_END, SPACE, OTHER, APOSTROPHE, UNDERSCORE, NUMBER, MARK, LETTER = range(8)
"""Kinds of characters. Those before OTHER are white space; from UNDERSCORE on, runs of them are words."""

APOSTROPHES = "'\u2019"
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Where `str.splitlines` cuts."""

LAST_CASED = 0x1FFFF
"""No character behind this one has a lower case."""


@cache
def kinds_of_characters() -> NDArray[np.uint8]:
    """The kind of each code point."""
    categories = "".join(map(unicodedata.category, map(chr, range(sys.maxunicode + 1))))
    majors = np.frombuffer(categories.encode(), "S1")[::2]
    kinds = np.full(len(majors), OTHER, np.uint8)
    for major, kind in ((b"L", LETTER), (b"M", MARK), (b"N", NUMBER)):
        kinds[majors == major] = kind
    spaces = [point for point in range(LAST_CASED) if chr(point).isspace()]
    for points, kind in ((spaces, SPACE), (list(map(ord, LINE_ENDS)), LINE_END), (list(map(ord, APOSTROPHES)), APOSTROPHE)):
        kinds[points] = kind
    kinds[ord("_")] = UNDERSCORE
    return kinds


@cache
def lower_case() -> NDArray[np.uint32]:
    """The lower case of each code point; of U+0130, which has two characters for one, the first."""
    lower = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    lower[: LAST_CASED + 1] = [ord(chr(point).lower()[0]) for point in range(LAST_CASED + 1)]
    return lower
