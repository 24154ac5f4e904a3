"""The values of Gopher's quality and repetition rules (Rae et al. 2021, appendix A1.1) for each text.

Repetition: n-grams consist of words as written, separated by white space. An n-gram is identified by the numbers of its
two (n - 1)-grams. If one of these is unique in the text, so is the n-gram, and it needs no number.

Quality: as in datatrove's implementation, ratios and shares of words are over all words. Words without a letter, number
or mark are symbols, which count only there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import LETTER, OTHER, Hashes, Lines, Points, Positions, Words
from trainer.curation.loops import DOT, FACTOR, compiled, ends_with_dots, without_space
from trainer.curation.texts import Texts, share

TOP_N, DUPLICATE_N = (2, 3, 4), (5, 6, 7, 8, 9, 10)
SHORTEST, LONGEST, FIRST_DUPLICATE = 2, 10, 5

REPETITION = np.dtype([
    ("duplicate_lines", np.float32),  # share of nonempty lines that repeat an earlier one
    ("duplicate_line_characters", np.float32),  # their share of the text's characters
    ("duplicate_paragraphs", np.float32),  # the same for paragraphs, which empty lines separate
    ("duplicate_paragraph_characters", np.float32),
    *[(f"top_{n}_gram_characters", np.float32) for n in TOP_N],  # share of the most frequent n-gram
    *[(f"duplicate_{n}_gram_characters", np.float32) for n in DUPLICATE_N],  # share of repeated n-grams
])  # fmt: skip

REPETITION_COUNTS = np.dtype([
    (name, np.int64)
    for name in ("lines", "duplicate_lines", "line_characters",
                 "paragraphs", "duplicate_paragraphs", "paragraph_characters")
])  # fmt: skip

UNIQUE = -1


def repetition(texts: Texts) -> NDArray[np.void]:
    """The fields of `REPETITION` for each text."""
    counts = np.zeros(len(texts), REPETITION_COUNTS)
    grams = np.zeros((len(texts), LONGEST + 1), np.int64)
    _count_repeated_lines(texts.lines, counts)
    _count_grams(texts.words, grams)
    characters = np.diff(texts.starts)
    measured = np.zeros(len(texts), REPETITION)
    for part in ("line", "paragraph"):
        measured[f"duplicate_{part}s"] = share(counts[f"duplicate_{part}s"], counts[f"{part}s"])
        measured[f"duplicate_{part}_characters"] = share(counts[f"{part}_characters"], characters)
    for n in TOP_N:
        measured[f"top_{n}_gram_characters"] = share(grams[:, n], characters)
    for n in DUPLICATE_N:
        measured[f"duplicate_{n}_gram_characters"] = share(grams[:, n], characters)
    return measured


@compiled
def _number(keys: Hashes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The number of each key, from 0 in order of first occurrence; and where each number first occurs."""
    size = 4
    while size < 2 * len(keys):
        size *= 2
    slots = np.full(size, -1, np.int32)
    numbers, firsts = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
    known = 0
    for at in range(len(keys)):
        slot = (keys[at] * FACTOR) >> np.uint64(32) & np.uint64(size - 1)
        while slots[slot] >= 0 and keys[firsts[slots[slot]]] != keys[at]:
            slot = (slot + np.uint64(1)) & np.uint64(size - 1)
        if slots[slot] < 0:
            slots[slot], firsts[known] = known, at
            known += 1
        numbers[at] = slots[slot]
    return numbers, firsts[:known]


@compiled
def _count_repeated_lines(lines: Lines, counts: NDArray[np.void]) -> None:
    for text in range(len(counts)):
        count = counts[text]
        first, end, hashes = _full_lines(lines, text)
        count.lines = len(hashes)
        numbers, firsts = _number(hashes)
        for line in range(len(hashes)):
            if firsts[numbers[line]] != line:
                count.duplicate_lines += 1
                count.line_characters += end[line] - first[line]
        first, end, hashes = _paragraphs(lines, text)
        count.paragraphs = len(hashes)
        numbers, firsts = _number(hashes)
        for paragraph in range(len(hashes)):
            if firsts[numbers[paragraph]] != paragraph:
                count.duplicate_paragraphs += 1
                count.paragraph_characters += end[paragraph] - first[paragraph]


@compiled
def _full_lines(lines: Lines, text: int) -> tuple[Positions, Positions, Hashes]:
    """First character, end and hash of each nonempty line of a text."""
    own = slice(lines.starts[text], lines.starts[text + 1])
    first, end, hashes = lines.first[own], lines.end[own], lines.hashes[own]
    full = end > first
    return first[full], end[full], hashes[full]


@compiled
def _paragraphs(lines: Lines, text: int) -> tuple[Positions, Positions, Hashes]:
    """First character, end and hash of each run of nonempty lines of a text."""
    most = lines.starts[text + 1] - lines.starts[text]
    first, end, hashes = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(most, np.uint64)
    count, is_open = 0, False
    for line in range(lines.starts[text], lines.starts[text + 1]):
        if lines.end[line] == lines.first[line]:
            is_open = False
            continue
        if not is_open:
            first[count], is_open = lines.first[line], True
            count += 1
        end[count - 1] = lines.end[line]
        hashes[count - 1] = hashes[count - 1] * FACTOR + lines.hashes[line]
    return first[:count], end[:count], hashes[:count]


@compiled
def _count_grams(words: Words, characters: NDArray[np.int64]) -> None:
    """For each text and n the characters of the most frequent n-gram, or of duplicates from `FIRST_DUPLICATE` on."""
    for text in range(len(characters)):
        own = slice(words.starts[text], words.starts[text + 1])
        before = np.zeros(own.stop - own.start + 1, np.int64)  # characters of the words before each
        before[1:] = np.cumsum(words.end[own] - words.first[own])
        numbers, firsts = _number(words.hashes[own])
        _forget_unique(numbers, _times(numbers, len(firsts)))
        for n in range(SHORTEST, LONGEST + 1):
            if len(numbers) < 2:
                break
            numbers, top, times = _extend(numbers)
            if n < FIRST_DUPLICATE:
                characters[text, n] = times * (before[top + n] - before[top] + n - 1)  # a space between words
            else:
                characters[text, n] = _duplicates(numbers, before, n)


@compiled
def _extend(numbers: NDArray[np.int32]) -> tuple[NDArray[np.int32], int, int]:
    """The numbers of n-grams from those of (n - 1)-grams; the first position of the most frequent, and its count."""
    longer = np.full(len(numbers) - 1, UNIQUE, np.int32)
    places, keys = np.empty(len(longer), np.int32), np.empty(len(longer), np.uint64)
    count = 0
    for at in range(len(longer)):
        if numbers[at] != UNIQUE and numbers[at + 1] != UNIQUE:
            places[count] = at
            keys[count] = np.uint64(numbers[at]) << np.uint64(32) | np.uint64(numbers[at + 1])
            count += 1
    alike, firsts = _number(keys[:count])
    times = _times(alike, len(firsts))
    _forget_unique(alike, times)
    for at in range(count):
        longer[places[at]] = alike[at]
    if len(times) == 0 or times.max() == 1:
        return longer, 0, 1
    most = times.argmax()
    return longer, places[firsts[most]], times[most]


@compiled
def _times(numbers: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """The number of occurrences of each number."""
    times = np.zeros(count, np.int32)
    for number in numbers:
        times[number] += 1
    return times


@compiled
def _forget_unique(numbers: NDArray[np.int32], times: NDArray[np.int32]) -> None:
    for at in range(len(numbers)):
        if times[numbers[at]] == 1:
            numbers[at] = UNIQUE


@compiled
def _duplicates(numbers: NDArray[np.int32], before: Positions, n: int) -> int:
    """The characters of repeated n-grams, none counted twice: after a repeated one, the scan continues at its end."""
    seen = np.zeros(len(numbers) + 1, np.bool_)
    at = characters = 0
    while at < len(numbers):
        if numbers[at] == UNIQUE:
            at += 1
        elif seen[numbers[at]]:
            characters += before[at + n] - before[at]
            at += n
        else:
            seen[numbers[at]] = True
            at += 1
    return characters


STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

QUALITY = np.dtype([
    ("words", np.int32),  # without symbols
    ("mean_word_length", np.float32),  # characters of these words, including attached punctuation
    ("hashes_per_word", np.float32),  # the character #
    ("ellipses_per_word", np.float32),  # three dots, or the character …
    ("bullet_lines", np.float32),  # share of lines that begin with a bullet or a hyphen
    ("ellipsis_lines", np.float32),  # share of lines that end with an ellipsis
    ("words_with_letter", np.float32),  # share
    ("stop_words", np.int32),  # number of different stop words in the text
])  # fmt: skip

QUALITY_COUNTS = np.dtype([
    (name, np.int64)
    for name in ("words", "characters", "lettered", "hashes", "ellipses", "stop_words", "bullet_lines",
    "ellipsis_lines")
])  # fmt: skip

HASH, HYPHEN, BULLET, ELLIPSIS = 0x23, 0x2D, 0x2022, 0x2026


def quality(texts: Texts, stop_words: Sequence[str] = STOP_WORDS) -> NDArray[np.void]:
    """The fields of `QUALITY` for each text. Stop words match only as written here (case-sensitive)."""
    counts = np.zeros(len(texts), QUALITY_COUNTS)
    wanted = Texts([" ".join(stop_words).encode()]).words.hashes
    is_letter, is_space = texts.kinds >= LETTER, texts.kinds < OTHER
    _count_words(texts.points, is_letter, texts.words, wanted, counts)
    _count_line_marks(texts.points, is_space, texts.lines, counts)
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
    """Count the # of a word, and its ellipses: three dots are one, six are two."""
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
def _count_line_marks(points: Points, is_space: NDArray[np.bool_], lines: Lines, counts: NDArray[np.void]) -> None:
    for text in range(len(counts)):
        count = counts[text]
        for line in range(lines.starts[text], lines.starts[text + 1]):
            first, end = without_space(is_space, lines.first[line], lines.end[line])
            if first < end:
                count.bullet_lines += points[first] == HYPHEN or points[first] == BULLET
                count.ellipsis_lines += points[end - 1] == ELLIPSIS or ends_with_dots(points, first, end)
