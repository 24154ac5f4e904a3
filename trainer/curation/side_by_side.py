"""Two texts side by side, where they differ: word by word from the first difference on."""

import textwrap
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice, zip_longest

WIDTH = 58
"""Characters of each column: both fit into 120."""

ROWS = 30
CONTEXT = 6
"""Words that are shown before and after what differs."""

WORDS = 600
"""Words of each text that are compared from the first difference on: the time grows with the square of their number."""


def side_by_side(one: str, other: str) -> Iterator[str]:
    """The first words that two texts have differently: those of a document at the left, of its original at the right."""
    left, right = one.split(), other.split()
    if left == right:
        yield "  they differ in white space alone"
        yield ""
        return
    rows = list(islice(_rows(left, right), ROWS + 1))
    yield from (f"  {mine:<{WIDTH}} | {its}".rstrip() for mine, its in rows[:ROWS])
    yield from ["  … and more"] if len(rows) > ROWS else []
    yield ""


def _rows(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "this document", "the one that it is a duplicate of"
    same = next(
        (at for at, (mine, its) in enumerate(zip(left, right, strict=False)) if mine != its), min(len(left), len(right))
    )
    start = max(0, same - CONTEXT)
    matcher = SequenceMatcher(None, left[start : start + WORDS], right[start : start + WORDS], autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, first, _, its_first, _), (_, _, end, _, its_end) = group[0], group[-1]
        yield f"from word {start + first + 1} on", f"from word {start + its_first + 1} on"
        mine, its = _wrapped(left[start + first : start + end]), _wrapped(right[start + its_first : start + its_end])
        yield from zip_longest(mine, its, fillvalue="")


def _wrapped(words: Sequence[str]) -> list[str]:
    return textwrap.wrap(" ".join(words)[: WIDTH * ROWS], WIDTH)
