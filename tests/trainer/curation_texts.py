"""Texts to be measured, and what their words are by the definition, one character after the other."""

import random
import unicodedata
from functools import cache
from pathlib import Path

from tests.trainer.raw_files import docstrings, sources
from tests.trainer.small_tokenizers import random_texts

MADE = [
    "", " ", "\n", "word", "don't", "_", "__", "___ a", "'", "a'", "'a", "a''b", "#", "...", "…", "- a\n- b\n",
    "•\u00a0a\n•b",
    "Größe e\u0301te\u0301's naïve l’été", "Привет, мир. ΟΔΟΣ İstanbul", "日本語のテキスト。二行目", "नमस्ते दुनिया",
    "ABCと3月のcafé日x_日's がか\u3099", "ที่นี่ 中文mixed文字",
    "ﬁ Ǆ ① Ⅳ ½ ²", "👩‍👩‍👧 🇩🇪 👍🏽 ☂️", "\ufeffa\u200bb\u00adc", "one\r\ntwo\r\n\r\none\r\n",
    "one\rtwo\x0bthree\x0cfour\x1cfive\x85six\u2028seven\u2029",
    "\r\r\n\n\r", "a\x00b\x1fc", "same\nsame\n\nsame\nsame\n\nother\n\nsame\nsame", "word " * 5000, "x" * 5000,
    "the of and\n" * 300,
    "a b c d e f g h i j k l m n\n" * 3, "\n\n\n".join(["a line that comes back"] * 7), "  \n\t\nfirst\n  \n  \n",
    "This is one. This is two! Is it three? \"Yes\" it is.\nlorem ipsum\nLorem ipsum is on this line.",
    "We use cookies here.\nPlease enable JavaScript now.\nA { bracket is here.", "Wait for it...\nAnd this one…\nDone "
                                                                                 "it is.",
]  # fmt: skip

SPOKEN = {
    "en": "The mill stands where the river is narrow, and its wheel turns day and night.",
    "de": "Die Mühle steht dort, wo der Fluss schmal ist, und ihr Rad dreht sich Tag und Nacht.",
    "fr": "Le moulin se trouve là où la rivière est étroite, et sa roue tourne jour et nuit.",
    "es": "El molino está donde el río es estrecho, y su rueda gira de día y de noche.",
    "ru": "Мельница стоит там, где река узкая, и её колесо вращается день и ночь.",
    "ja": "水車小屋は川の狭いところにあり、車輪は昼も夜も回り続けている。",
    "hi": "चक्की वहाँ है जहाँ नदी संकरी है, और उसका पहिया दिन-रात घूमता है।",
}


@cache
def texts() -> list[str]:
    """Texts of every sort: made ones, random ones, pieces of prose and whole modules."""
    return [*MADE, *random_texts(300, seed=17), *word_salads(200, seed=18), *docstrings(300), *sources().values()]


def word_salads(count: int, seed: int) -> list[str]:
    """Lines, paragraphs and sentences of so few words that many come back."""
    draw = random.Random(seed)
    parts = [
        "the",
        "of",
        "and",
        "To",
        "don't",
        "x_1",
        "42",
        "é",
        "…",
        "...",
        "#",
        "-",
        "•",
        ". ",
        ".",
        "! ",
        "\n",
        "\n\n",
        " ",
        "  ",
    ]

    def salad() -> str:
        few = draw.sample(parts, draw.randint(1, 6))
        return "".join(draw.choice(few) + draw.choice(["", " ", "\n"]) for _ in range(draw.randint(0, 60)))

    return [salad() for _ in range(count)]


def encoded(of: list[str]) -> list[bytes]:
    return [text.encode() for text in of]


def plain_said(text: str) -> list[str]:
    """The words of a text as they are compared."""
    words: list[str] = []
    is_open = alone = False
    for at, character in enumerate(text):
        before, behind = text[at - 1 : at], text[at + 1 : at + 2]
        is_inside = is_open and not alone and character in "'’" and _is(before, "LM") and _is(behind, "L")
        if (is_inside and not is_alone(behind)) or _is(character, "LMN") or character == "_":
            goes_on = is_open and not is_alone(character) and (not alone or _is(character, "M"))
            words[-1:] = [words[-1] + character] if goes_on else [*words[-1:], character]
            is_open, alone = True, alone if goes_on else is_alone(character)
        else:
            is_open = False
    return [word for word in words if not is_symbol(word)]


WITHOUT_SPACES = (
    "CJK", "IDEOGRAPHIC", "HIRAGANA", "HENTAIGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO", "VERTICAL KANA",
    "VERTICAL IDEOGRAPHIC", "MASU",
    "THAI", "LAO", "KHMER", "MYANMAR",
)  # fmt: skip


def is_alone(character: str) -> bool:
    """Whether this is a letter of a script that puts no spaces between words."""
    return _is(character, "L") and unicodedata.name(character, "").startswith(WITHOUT_SPACES)


def is_symbol(word: str) -> bool:
    """Whether a word has no letter, number or mark."""
    return not any(_is(character, "LMN") for character in word)


def _is(character: str, categories: str) -> bool:
    return character != "" and unicodedata.category(character)[0] in categories


def manual_pages() -> list[str]:
    """Texts of the documentation that is installed on this machine; none where there is none."""
    return [path.read_text(errors="replace") for path in sorted(Path("/usr/share/doc").glob("*/copyright"))[:40]]
