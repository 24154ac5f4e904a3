"""The values of those rules of C4 that drop whole documents (Raffel et al. 2020, section 2.2), for each text.

As in C4's own program, only good lines count: those with at least three words that end in a terminal punctuation mark
and have no word longer than a thousand characters. Citation marks such as [1] at a line's end are ignored.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import OTHER, Lines, Points, lower_case
from trainer.curation.loops import DOT, compiled, ends_with_dots, without_space
from trainer.curation.texts import Texts

C4 = np.dtype([
    ("sentences", np.int32),  # in good lines that mention neither JavaScript nor policies
    ("lorem_ipsum_lines", np.int32),  # good lines, as below
    ("curly_bracket_lines", np.int32),
    ("javascript_lines", np.int32),
    ("policy_lines", np.int32),
])  # fmt: skip

Phrase = NDArray[np.uint32]
Flags = NDArray[np.bool_]

FEWEST_WORDS, LONGEST_WORD = 3, 1000

POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
CITATIONS = ("[edit]", "[citation needed]")

OPENING, CLOSING, DIGIT_0, DIGIT_9, CURLY_BRACKET = map(ord, "[]09{")
ENDS_OF_LINE = tuple(map(ord, ".?!\"'"))
ENDS_OF_SENTENCE = tuple(map(ord, ".?!"))
CLOSERS = tuple(map(ord, "\"')]”’»"))
ENDS_WITHOUT_SPACE = tuple(map(ord, "。！？｡"))


def c4(texts: Texts) -> NDArray[np.void]:
    """The fields of `C4` for each text."""
    measured = np.zeros(len(texts), C4)
    phrases = (
        _points("lorem ipsum"),
        _points("javascript"),
        tuple(map(_points, POLICIES)),
        tuple(map(_points, CITATIONS)),
    )
    _count_lines(texts.points, lower_case(), texts.kinds < OTHER, texts.lines, *phrases, measured)
    return measured


def _points(phrase: str) -> Phrase:
    return np.array(list(map(ord, phrase)), np.uint32)


@compiled
def _count_lines(
    points: Points, lower: Phrase, is_space: Flags, lines: Lines,
    lorem_ipsum: Phrase, javascript: Phrase, policies: tuple[Phrase, ...], citations: tuple[Phrase, ...],
    measured: NDArray[np.void],
) -> None:  # fmt: skip
    for text in range(len(measured)):
        row = measured[text]
        for line in range(lines.starts[text], lines.starts[text + 1]):
            first, end = without_space(is_space, lines.first[line], lines.end[line])
            if not _has_good_words(is_space, first, end):
                continue
            lowered = lower[points[first:end]]  # line by line: for all lines it would take 4 bytes per ASCII character
            end = first + _without_citations(lowered, 0, end - first, citations)
            if end == first or points[end - 1] not in ENDS_OF_LINE or ends_with_dots(points, first, end):
                continue
            content = lowered[: end - first]
            row.lorem_ipsum_lines += _contains(content, lorem_ipsum)
            if _contains(content, javascript):
                row.javascript_lines += 1
                continue
            row.curly_bracket_lines += (content == CURLY_BRACKET).any()
            if _contains_any(content, policies):
                row.policy_lines += 1
                continue
            row.sentences += _sentences(points, is_space, first, end)


@compiled
def _has_good_words(is_space: Flags, first: int, end: int) -> bool:
    """Whether the line has enough words separated by white space, and none is too long."""
    words = length = 0
    for at in range(first, end):
        length = 0 if is_space[at] else length + 1
        words += length == 1
        if length > LONGEST_WORD:
            return False
    return words >= FEWEST_WORDS


@compiled
def _without_citations(points: Phrase, first: int, end: int, citations: tuple[Phrase, ...]) -> int:
    """The end of the line without citation marks such as [1], [] and [edit]."""
    while end > first and points[end - 1] == CLOSING:
        before = end
        at = end - 2
        while at >= first and DIGIT_0 <= points[at] <= DIGIT_9:
            at -= 1
        if at >= first and points[at] == OPENING:
            end = at
        for citation in citations:
            if end - len(citation) >= first and _stands_at(points, end - len(citation), citation):
                end -= len(citation)
        if end == before:
            break
    return end


@compiled
def _stands_at(points: Phrase, at: int, phrase: Phrase) -> bool:
    for number in range(len(phrase)):  # noqa: SIM110 - compiled code has no generators
        if points[at + number] != phrase[number]:
            return False
    return True


@compiled
def _contains(line: Phrase, phrase: Phrase) -> bool:
    for at in range(len(line) - len(phrase) + 1):  # noqa: SIM110
        if line[at] == phrase[0] and _stands_at(line, at, phrase):
            return True
    return False


@compiled
def _contains_any(line: Phrase, phrases: tuple[Phrase, ...]) -> bool:
    for phrase in phrases:  # noqa: SIM110
        if _contains(line, phrase):
            return True
    return False


@compiled
def _sentences(points: Points, is_space: Flags, first: int, end: int) -> int:
    """One more than the number of sentence ends: a mark and optional closing characters, followed by white space.

    Marks of scripts without white space need none after them; several dots do not end a sentence.
    """
    sentences, at = 1, first
    while at < end:
        mark = points[at]
        at += 1
        if mark not in ENDS_OF_SENTENCE and mark not in ENDS_WITHOUT_SPACE:
            continue
        is_dots = mark == DOT and ((at < end and points[at] == DOT) or (at - 2 >= first and points[at - 2] == DOT))
        while at < end and (
            points[at] in CLOSERS or points[at] in ENDS_OF_SENTENCE or points[at] in ENDS_WITHOUT_SPACE
        ):
            mark = points[at]
            at += 1
        if at < end and not is_dots and (is_space[at] or points[at - 1] in ENDS_WITHOUT_SPACE):
            sentences += 1
    return sentences
