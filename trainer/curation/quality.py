"""What the quality rules of Gopher compare (Rae et al. 2021, appendix A1.1), for each text.

Words are what stands between white space. As in the reference that data is filtered with today (datatrove), ratios and
shares of words are of all words; those without a letter, number or mark are symbols, and are not counted otherwise.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import LETTER, OTHER, Hashes, Points
from trainer.curation.compiled import compiled
from trainer.curation.texts import Lines, Texts, Words, share

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

QUALITY = np.dtype([
    ("words", np.int32),  # symbols are not counted
    ("mean_word_length", np.float32),  # characters of these, with the punctuation on them
    ("hashes_per_word", np.float32),  # the character #
    ("ellipses_per_word", np.float32),  # three dots, or the one character
    ("bullet_lines", np.float32),  # share of lines that begin with a bullet or a hyphen
    ("ellipsis_lines", np.float32),  # share of lines that end with an ellipsis
    ("words_with_letter", np.float32),  # share
    ("stop_words", np.int32),  # how many different ones occur
])  # fmt: skip

COUNTS = np.dtype([
    (name, np.int64)
    for name in ("words", "characters", "lettered", "hashes", "ellipses", "stop_words", "bullet_lines", "ellipsis_lines")
])  # fmt: skip

HASH, HYPHEN, DOT, BULLET, ELLIPSIS = 0x23, 0x2D, 0x2E, 0x2022, 0x2026


def quality(texts: Texts, stop_words: Sequence[str] = STOP_WORDS) -> NDArray[np.void]:
    """The fields of `QUALITY` for each text. Stop words are looked for as they are written here."""
    counts = np.zeros(len(texts), COUNTS)
    wanted = Texts([" ".join(stop_words).encode()]).words.hashes
    is_letter, is_space = texts.kinds >= LETTER, texts.kinds < OTHER
    _count_words(texts.points, is_letter, texts.words, wanted, counts)
    _count_lines(texts.points, is_space, texts.lines, counts)
    words, lines = np.diff(texts.words.starts), np.diff(texts.lines.starts)
    measured = np.zeros(len(texts), QUALITY)
    measured["words"] = counts["words"]
    measured["mean_word_length"] = share(counts["characters"], counts["words"])
    measured["hashes_per_word"] = share(counts["hashes"], words)
    measured["ellipses_per_word"] = share(counts["ellipses"], words)
    measured["bullet_lines"] = share(counts["bullet_lines"], lines)
    measured["ellipsis_lines"] = share(counts["ellipsis_lines"], lines)
    measured["words_with_letter"] = share(counts["lettered"], words)
    measured["stop_words"] = counts["stop_words"]
    return measured


@compiled
def _count_words(
    points: Points, is_letter: NDArray[np.bool_], words: Words, stop_words: Hashes, counts: NDArray[np.void]
) -> None:
    for text in range(len(counts)):
        count = counts[text]
        found = np.zeros(len(stop_words), np.bool_)
        for word in range(words.starts[text], words.starts[text + 1]):
            first, end = words.first[word], words.end[word]
            _count_signs(points, first, end, count)
            if words.symbol[word]:
                continue
            count.words += 1
            count.characters += end - first
            count.lettered += _any(is_letter, first, end)
            for number in range(len(stop_words)):
                found[number] |= words.hashes[word] == stop_words[number]
        count.stop_words = found.sum()


@compiled
def _count_signs(points: Points, first: int, end: int, count: Any) -> None:
    """Count the # of a word, and its ellipses, of which three dots are one, and six two."""
    dots = 0
    for at in range(first, end):
        point = points[at]
        count.hashes += point == HASH
        dots = dots + 1 if point == DOT else 0
        if dots == 3 or point == ELLIPSIS:
            count.ellipses += 1
            dots = 0


@compiled
def _any(flags: NDArray[np.bool_], first: int, end: int) -> bool:
    for at in range(first, end):  # noqa: SIM110 - compiled code has no generators
        if flags[at]:
            return True
    return False


@compiled
def _count_lines(points: Points, is_space: NDArray[np.bool_], lines: Lines, counts: NDArray[np.void]) -> None:
    for text in range(len(counts)):
        count = counts[text]
        for line in range(lines.starts[text], lines.starts[text + 1]):
            first, end = lines.first[line], lines.end[line]
            while first < end and is_space[first]:
                first += 1
            while first < end and is_space[end - 1]:
                end -= 1
            if first < end:
                count.bullet_lines += points[first] == HYPHEN or points[first] == BULLET
                count.ellipsis_lines += _ends_with_ellipsis(points, first, end)


@compiled
def _ends_with_ellipsis(points: Points, first: int, end: int) -> bool:
    if points[end - 1] == ELLIPSIS:
        return True
    return end - first >= 3 and points[end - 1] == DOT and points[end - 2] == DOT and points[end - 3] == DOT
