"""Texts in blocks: where they are cut, and that long ones without words take no longer than others."""

import random
import re
from collections.abc import Iterator

import pytest

from trainer.data.pieces import LINE_END, blocks_of, text_cuts

NUMBERS = b"".join(b"%d 12.5 77\n" % number for number in range(20_000))


@pytest.mark.parametrize(
    ("text", "seen"),
    [(NUMBERS, 2), (NUMBERS + b"a\n", 2), (NUMBERS.replace(b"7\n", b"x\n"), 1), (b"a\n" + NUMBERS, 2)],
    ids=["numbers", "numbers before a word", "words", "a word before numbers"],
)
def test_cutting_a_text_into_blocks_looks_at_each_line_end_a_few_times_at_most(
    text: bytes, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    class Counting:
        def finditer(self, block: bytes, start: int) -> Iterator[re.Match[bytes]]:
            for match in LINE_END.finditer(block, start):
                looked.append(match.start())
                yield match

    monkeypatch.setattr("trainer.data.pieces.LINE_END", Counting())
    blocks = list(blocks_of(text, 1024))
    assert b"".join(blocks) == text
    assert len(blocks) > (100 if not text.endswith(b"a\n") else 0)
    assert len(looked) <= seen * text.count(b"\n")


@pytest.mark.parametrize("seed", range(200))
def test_blocks_end_at_the_first_cut_after_their_least_size(seed: int) -> None:
    draw = random.Random(seed)
    letters = ["a", "é"] if seed % 2 else []
    text = "".join(draw.choice([*letters, "1", "\n", "\r\n", " ", "\n\n"]) for _ in range(60)).encode()
    least, start = draw.randint(1, 8), 0
    for block in blocks_of(text, least):
        more = len(text) - start > 2 * least
        cut = next(text_cuts(text, start + least), None) if more else None
        assert start + len(block) == (len(text) if cut is None else cut)
        start += len(block)
    assert start == len(text)
