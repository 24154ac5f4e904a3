"""Loops over the characters of many texts, for the words, lines and n-grams in them. Loading this loads a compiler."""

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import LINE_END, NUMBER, Hashes, Points, Positions
from trainer.curation.compiled import compiled

START, FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)


@compiled
def _mix(value: np.uint64) -> np.uint64:
    """Spread every bit over all others: the end of SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def read_words(
    points: Points, lower: NDArray[np.uint32], kinds: NDArray[np.uint8], first: Positions, end: Positions
) -> tuple[Hashes, Hashes, NDArray[np.bool_]]:
    """The hash of each word as it is and in lower case, which `lower` has of each code point, and whether it is a symbol."""
    hashes, folded, symbol = np.empty(len(first), np.uint64), np.empty(len(first), np.uint64), np.empty(len(first), np.bool_)
    for word in range(len(first)):
        own, low, says = START, START, False
        for at in range(first[word], end[word]):
            own = (own ^ np.uint64(points[at])) * FACTOR
            low = (low ^ np.uint64(lower[points[at]])) * FACTOR
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
def _behind_line_end(points: Points, at: int, stop: int) -> int:
    """Where the next line starts, or the text's end."""
    if at + 1 < stop and points[at] == 13 and points[at + 1] == 10:  # the two characters of Windows end one line
        return at + 2
    return min(at + 1, stop)


@compiled
def count_lines(points: Points, starts: Positions, kinds: NDArray[np.uint8]) -> Positions:
    counts = np.zeros(len(starts) - 1, np.int64)
    for text in range(len(counts)):
        at, stop = starts[text], starts[text + 1]
        while at < stop:
            at = _behind_line_end(points, _end_of_line(kinds, at, stop), stop)
            counts[text] += 1
    return counts


@compiled
def find_lines(
    points: Points, starts: Positions, kinds: NDArray[np.uint8],
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
def find_shingles(folded: Hashes, word_starts: Positions, n: int, starts: Positions, hashes: Hashes) -> None:
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


@compiled
def collapse(raw: NDArray[np.uint8], starts: Positions, is_space: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], Positions]:
    """Texts of ASCII with one space for each run of white space and none at their ends: at `[starts[t], ends[t])`."""
    collapsed, ends = np.empty(len(raw), np.uint8), starts[:-1].copy()
    for text in range(len(ends)):
        to, between = starts[text], False
        for at in range(starts[text], starts[text + 1]):
            if is_space[raw[at]]:
                between = to > starts[text]
                continue
            if between:
                collapsed[to] = 32
                to, between = to + 1, False
            collapsed[to] = raw[at]
            to += 1
        ends[text] = to
    return collapsed, ends
