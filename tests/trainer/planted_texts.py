"""Texts planted among real ones, each with the reason for which it must go, and the text that stays in its place."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.trainer.curating import prose
from tests.trainer.curation_texts import SPOKEN

KEPT, EXACT, NEAR, CONTAMINATED = "kept", "exact duplicate", "near duplicate", "contaminated"
REPEATED, LANGUAGE = "gopher_repetition: duplicate_lines too high", "language: language"
COPIED = 0.965
"""The share of words that a copy keeps: it is cut, so that the original is never the shorter one."""

LINKS, LINK, SHIFT, RESEMBLING = 20, 1000, 25, 5
"""A chain's texts, their words, and how many of the words before it each one has not; so many after another have a
similarity of at least 0.8 to the first of them, (996 - 4 * 25) / (996 + 4 * 25)."""

EVALUATION = [" ".join(prose(5000 + number, 30)) for number in range(8)]


class Planted(NamedTuple):
    """A text, why it goes, and the place of the text that stays for it, counted from the first real one."""

    text: str
    reason: str
    original: int | None = None


def copies(real: Sequence[str], alone: Sequence[int]) -> Iterator[Planted]:
    """Copies of the real texts of these numbers: of half of them with other white space, of the others without the
    end.
    """
    for number in alone[::2]:
        words = real[number].split()
        yield from (Planted(space.join(words), EXACT, number) for space in ("\n", "  "))
    for number in alone[1::2]:
        words = real[number].split()
        yield Planted(" ".join(words[: round(COPIED * len(words))]), NEAR, number)


def chains(count: int, before: int) -> Iterator[Planted]:
    """Chains in which each text resembles the next few, behind `before` other texts: of these few the first stays."""
    for chain in range(count):
        words, first = prose(7000 + chain, LINK + SHIFT * LINKS), before + chain * LINKS
        for link in range(LINKS):
            text = " ".join(words[SHIFT * link : SHIFT * link + LINK])
            place = link % RESEMBLING
            yield Planted(text, NEAR, first + link - place) if place else Planted(text, KEPT)


def junk() -> Iterator[Planted]:
    """Texts that go for what they are, and such as are like them and stay."""
    for number, sentence in enumerate(EVALUATION):
        for shared, reason in ((13, CONTAMINATED), (12, KEPT)):
            words = prose(8000 + 20 * number + shared, 120)
            words[60 : 60 + shared] = sentence.split()[5 : 5 + shared]
            yield Planted(" ".join(words), reason)
    for number in range(8):
        lines = [" ".join(prose(9000 + 20 * number + line, 12)) for line in range(20)]
        yield Planted("\n".join([*lines[:12], *lines[:8]]), REPEATED)
        yield Planted("\n".join([*lines[12:], lines[12]]), KEPT)
    yield from (Planted(sentence, LANGUAGE) for code, sentence in SPOKEN.items() if code != "en")
