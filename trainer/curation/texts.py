"""A batch of documents: their characters, words and lines, with a hash of the content of each word and line.

Hashes have 64 well-mixed bits and are equal on every machine.

Text is compared with evaluation sets after `matching`, so that sentences that a person would call equal have the same
words. It ignores HTML tags, accents, underscores around words, invisible characters, and hyphens between letters (also
at the end of a line). It replaces entities, ligatures, full-width characters, curly apostrophes, fractions, and letters
such as ß and ø by the plain characters that they stand for.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from trainer.curation.characters import (
    APOSTROPHE,
    HYPHEN,
    SEVERAL,
    UNDERSCORE,
    Hashes,
    Lines,
    NormalizedWords,
    Points,
    Positions,
    Spelling,
    Words,
    kinds_of_characters,
    lower_case,
    plain_spelling,
)


class Texts:
    """Documents in valid UTF-8."""

    def __init__(self, documents: Sequence[bytes]) -> None:
        self.documents = documents

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def strings(self) -> list[str]:
        """The documents as Python strings."""
        return [document.decode() for document in self.documents]

    @cached_property
    def points(self) -> Points:
        """The code points of all texts, one text after the other; uint8 if all are ASCII."""
        if all(document.isascii() for document in self.documents):
            return np.frombuffer(b"".join(self.documents), np.uint8)
        return np.frombuffer("".join(self.strings).encode("utf-32-le"), np.dtype("<u4"))

    @cached_property
    def starts(self) -> Positions:
        """The start of each text in `points`, and the end of the last; shape [texts + 1]."""
        return starts_of(np.fromiter(map(len, self.strings), np.int64, len(self)))

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """The kind of each code point in `points`."""
        return kinds_of_characters()[self.points]

    @cached_property
    def words(self) -> Words:
        """The words of all texts, as separated by white space."""
        from trainer.curation.loops import find_words

        return find_words(self.points, self.starts, self.kinds)

    def normalized_words(self, spelling: Spelling | None = None) -> NormalizedWords:
        """The words of all texts in the form that is compared: in `plain_spelling`, unless another is given."""
        from trainer.curation.loops import find_normalized_words

        return find_normalized_words(self.points, self.starts, spelling or plain_spelling())

    @cached_property
    def lines(self) -> Lines:
        """The lines of all texts."""
        from trainer.curation.loops import find_lines

        return find_lines(self.points, self.starts, self.kinds)


def shingles(texts: Texts, n: int) -> tuple[Hashes, Positions]:
    """Hashes of every n successive words in compared form; those of text t are at `[starts[t], starts[t + 1])`.

    A text with fewer words has one hash of all its words, and a text without words has none.
    """
    words = texts.normalized_words()
    return shingles_of(words.hashes, words.starts, n)


def shingles_of(words: Hashes, word_starts: Positions, n: int) -> tuple[Hashes, Positions]:
    """The same for texts whose words' hashes are known."""
    from trainer.curation.loops import find_shingles

    counts = np.diff(word_starts)
    starts = starts_of(np.maximum(counts - n + 1, np.minimum(counts, 1)))
    hashes = np.empty(int(starts[-1]), np.uint64)
    find_shingles(words, word_starts, n, starts, hashes)
    return hashes, starts


def starts_of(counts: NDArray[np.int64] | NDArray[np.bool_]) -> Positions:
    """The start of each group's items in the concatenation of all groups, and the end of the last; shape [N + 1]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def share(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each part divided by its whole; 0 for an empty whole."""
    return parts / np.maximum(wholes, 1)


MATCHING = 3
"""Increase it when other texts match."""

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
TAG = re.compile(
    r"<(?:!--[^<>]*|![A-Za-z][^<>]*|\?[A-Za-z][^<>]*|/?[A-Za-z][\w:.-]*+"
    r"(?:\s++[A-Za-z_:@][\w:.@-]*+(?:\s*+=\s*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>=`]++))?+)*+\s*+/?)>"
)
"""A tag in HTML's syntax; `i <n; i++` does not match. Possessive quantifiers prevent backtracking on any text."""

EMPHASIS = re.compile(r"(?<!\w)_++|(?<!_)_++(?!\w)")
"""Underscores before and after words, as in Markdown; an inner one, as in `file_name`, is part of the word."""

LETTERS = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d"}
PLAIN = {**LETTERS, **dict.fromkeys("‘’‛ʻʼ´′", "'")}
"""Replacements of characters for which Unicode's tables have no plain form."""

FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")
"""Fractions in one character, such as one half: replaced by two adjacent numbers, as in 1/2."""

GRAVE = "`"
HYPHENS = "-\u00ad\u2010\u2011"
TATWEEL = "\u0640"
WITH_FORMS = ((0x80, 0x33FF), (0xA000, 0xABFF), (0xF900, 0x1FFFF), (0x2F800, 0x2FA1F), (0xE0000, 0xE01EF))
"""Ranges of code points that have a plain form, or stand for nothing."""


def matching(texts: Texts) -> Texts:
    """Texts without tags, entities and emphasis, in the normal form NFC; the same object if nothing changes."""
    plain = [_plain(text) for text in texts.strings]
    if all(one is other for one, other in zip(plain, texts.strings, strict=True)):
        return texts
    return Texts([text.encode() for text in plain])


def matching_words(texts: Texts) -> NormalizedWords:
    """The words of texts returned by `matching`."""
    return texts.normalized_words(matching_spelling())


def _plain(text: str) -> str:
    if "&" in text:  # before the tags, so that a tag written with entities and a plain one give the same text
        text = ENTITY.sub(lambda found: html.unescape(found[0]), text)
    if not text.isascii():
        text = FRACTION.sub(lambda found: f" {unicodedata.normalize('NFKD', found[0])} ", text)
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    if "<" in text:
        text = TAG.sub(" ", text)
    return EMPHASIS.sub("", text) if "_" in text else text


@cache
def matching_spelling() -> Spelling:
    """The spelling of words for matching."""
    kinds, folded = kinds_of_characters().copy(), lower_case().copy()
    kinds[list(map(ord, HYPHENS))] = HYPHEN
    kinds[ord(GRAVE)], folded[ord(GRAVE)] = APOSTROPHE, ord("'")
    several: list[str] = []
    for point in (point for first, last in WITH_FORMS for point in range(first, last + 1)):
        form = _form(chr(point))
        if kinds[point] == HYPHEN:
            continue
        if form == "":
            folded[point], kinds[point] = 0, UNDERSCORE
        elif len(form) == 1:
            folded[point] = ord(form)
            kinds[point] = kinds[ord(form)] if form.isascii() else kinds[point]
        else:
            folded[point] = SEVERAL + len(several)
            several.append(form)
    lengths = np.array(list(map(len, several)), np.int64)
    return Spelling(kinds, folded, starts_of(lengths), np.array(list(map(ord, "".join(several))), np.uint32))


def _form(character: str) -> str:
    """The characters that a character is folded to; may be empty."""
    if character in PLAIN:
        return PLAIN[character]
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    if decomposed == character and not _is_nothing(character):
        return character
    return unicodedata.normalize("NFC", "".join(PLAIN.get(each, each) for each in decomposed if not _is_nothing(each)))


def _is_nothing(character: str) -> bool:
    """Whether a character is an accent or a dot on a letter, or invisible; vowel signs of Indic scripts are neither."""
    on_letter = unicodedata.combining(character)
    return (
        on_letter in (8, *range(10, 37)) or on_letter >= 200 or unicodedata.category(character) == "Cf"
        or "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef" or character == TATWEEL
    )  # fmt: skip
