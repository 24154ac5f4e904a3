"""Whether a piece of text goes on with the word before it, told from its first bytes, which may be a part of a character."""

import sys
import unicodedata
from collections import Counter
from functools import cache

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""Bytes that byte-level tokenizers write as the characters of these numbers; the others are characters from 256 on."""

BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))
}

LENGTHS = ((0xF0, 4), (0xE0, 3), (0xC0, 2), (0x80, 0), (0, 1))
"""The bytes of a character in UTF-8, by the least byte that it begins with; 0 for bytes inside one."""

UNNAMED = ("Cn", "Co", "Cs")
"""The categories of numbers that are no character of Unicode."""


def bytes_of(token: str) -> bytes:
    """The bytes that a token of a byte-level tokenizer stands for."""
    return bytes(BYTES[character] for character in token)


def continues_word(text: bytes) -> bool:
    """Whether a text begins with a letter, a digit, or a mark at one, or inside a character.

    Ideographs are words by themselves, as BERT takes them. If a character's end is in the next token, what most characters are
    that begin like it decides.
    """
    if not text:
        return False
    length = next(length for least, length in LENGTHS if text[0] >= least)
    begin = text[:length]
    return length == 0 or (_continues(begin.decode(errors="replace")) if len(begin) == length else begin in _begun())


def _continues(character: str) -> bool:
    is_of_word = character.isalnum() or unicodedata.category(character)[0] == "M"
    return is_of_word and "IDEOGRAPH" not in unicodedata.name(character, "")


@cache
def _begun() -> frozenset[bytes]:
    """The beginnings of characters' bytes of which most continue a word."""
    votes: Counter[bytes] = Counter()
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        if unicodedata.category(character) not in UNNAMED:
            whole = character.encode()
            votes.update({whole[:end]: 1 if _continues(character) else -1 for end in range(1, len(whole))})
    return frozenset(begin for begin, vote in votes.items() if vote > 0)
