"""Two texts side by side, where they differ: word by word from the first difference on, and long words piece by piece."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice, zip_longest

WIDTH = 58
"""Characters of each column: both fit into 120."""

ROWS = 30
CONTEXT = 6
"""Pieces that are shown before and after what differs."""

PIECE = re.compile(r"\S{1,20}")
"""A word, or a part of a long one, such as a sentence of a script without spaces."""

WORDS = 600
"""Such pieces of each text that are compared from the first difference on: the time grows with the square of their number."""


def side_by_side(one: str, other: str) -> Iterator[str]:
    """The first words that two texts have differently: those of a document at the left, of its original at the right."""
    if PIECE.findall(one) == PIECE.findall(other):
        yield "  they differ in white space alone"
        yield ""
        return
    rows = list(islice(_rows(one, other), ROWS + 1))
    yield from (f"  {mine:<{WIDTH}} | {its}".rstrip() for mine, its in rows[:ROWS])
    yield from ["  … and more"] if len(rows) > ROWS else []
    yield ""


def _rows(one: str, other: str) -> Iterator[tuple[str, str]]:
    yield "this document", "the one that it is a duplicate of"
    left, right = list(PIECE.finditer(one)), list(PIECE.finditer(other))
    same = next(
        (at for at, (mine, its) in enumerate(zip(left, right, strict=False)) if mine[0] != its[0]), min(len(left), len(right))
    )
    start = max(0, same - CONTEXT)
    left, right = left[start : start + WORDS], right[start : start + WORDS]
    matcher = SequenceMatcher(None, [each[0] for each in left], [each[0] for each in right], autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, first, _, its_first, _), (_, _, end, _, its_end) = group[0], group[-1]
        (place, mine), (its_place, its) = _shown(one, left[first:end]), _shown(other, right[its_first:its_end])
        yield place, its_place
        yield from zip_longest(mine, its, fillvalue="")


def _shown(text: str, pieces: Sequence[re.Match[str]]) -> tuple[str, list[str]]:
    """Where some pieces of a text begin, and these, wrapped."""
    if not pieces:
        return "nothing", []
    words = " ".join(text[pieces[0].start() : pieces[-1].end()].split())
    return f"from character {pieces[0].start() + 1:,} on", textwrap.wrap(words[: WIDTH * ROWS], WIDTH)
