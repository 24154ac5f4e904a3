"""A corpus of standard library docstrings with planted documents that curation should find.

Each record's `planted` is its kind: `original`, `spaced` (a copy with different white space), `edited` (a copy with
some words replaced), `chain` (each shares a part of the previous one), `test` (with a sentence of evaluation.txt),
`foreign` (another language), `repeated` (repeated lines), `short`.
"""

import json
import random
from collections.abc import Sequence

SENTENCE_WORDS = 15
GERMAN = "der Mann sieht das alte Haus und geht dann langsam zum Fluss weil die Sonne noch nicht untergegangen ist"
FRENCH = "la petite fille regarde le vieux jardin puis elle marche vers la maison parce que le soleil est encore haut"


def plant(docstrings: Sequence[str], seed: int = 1) -> tuple[list[dict[str, str]], list[str]]:
    """The corpus's records in random order, and the lines of an evaluation set."""
    draw = random.Random(seed)
    long = [text for text in docstrings if 60 <= len(text.split()) <= 400]
    draw.shuffle(long)
    evaluation = [" ".join(text.split()[-SENTENCE_WORDS:]) for text in long[:10]]
    originals = long[10:210]
    records = [
        *_records("original", originals),
        *_records("spaced", [text.replace("\n", "\n\n") + " \n" for text in originals[:40]]),
        *_records("edited", [_edited(text, draw) for text in originals[40:80]]),
        *_records("chain", _chain(" ".join(originals[80:90]).split())),
        *_records("test", [f"{text}\n\n{line}" for text, line in zip(long[210:220], evaluation, strict=True)]),
        *_records("foreign", [_foreign(words.split(), draw) for words in (GERMAN, FRENCH) for _ in range(10)]),
        *_records("repeated", [f"{text.splitlines()[0]}\n" * 40 for text in originals[100:120]]),
        *_records("short", [text.split()[0] for text in originals[120:140]]),
    ]
    draw.shuffle(records)
    return records, evaluation


def as_lines(records: Sequence[dict[str, str]]) -> str:
    """Records as the lines of a file."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _records(kind: str, texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"planted": kind, "text": text} for text in texts]


def _edited(text: str, draw: random.Random) -> str:
    """A copy with one word in 120 replaced, at least one; nine tenths of the 5-grams stay the same."""
    words = text.split()
    for place in range(draw.randrange(20, 40), len(words), 120):
        words[place] = "otherwise"
    return " ".join(words)


def _chain(words: Sequence[str]) -> list[str]:
    """Documents that each share most words with the previous one, while the last shares few with the first."""
    return [" ".join(words[start : start + 200]) for start in range(0, 100, 10)]


def _foreign(words: Sequence[str], draw: random.Random) -> str:
    """Sentences of a language's words in random order."""
    sentences = (" ".join(draw.sample(words, len(words) - 4)) for _ in range(8))
    return " ".join(f"{sentence.capitalize()}." for sentence in sentences)
