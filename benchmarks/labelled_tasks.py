"""Small labelled tasks like GLUE's, made from sentences of the standard library's documentation.

cola: is the sentence original, or were its words shuffled? mrpc: was the second sentence only shortened, or was a word
replaced? stsb: the share of words that both sentences have, from 0 to 5.
"""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from samples.corpora import all_docstrings, standard_modules
from trainer.data.order import stable_key

SENTENCE = re.compile(r"[A-Z][\w,;' -]{24,72}\.")
SPLITS = {"train": 1600, "validation": 400}


def make_task(name: str, folder: Path) -> Path:
    """Write a task's train.tsv and validation.tsv into a folder and return it; deterministic for a Python version."""
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    texts = iter(sorted(sentences(), key=lambda text: stable_key(name, text)))
    header, make = MAKERS[name]
    chance = random.Random(name)
    for split, count in SPLITS.items():
        rows = (make(next(texts), next(texts), chance) for _ in range(count))
        target.joinpath(f"{split}.tsv").write_text(
            "\n".join(["\t".join(header), *("\t".join(row) for row in rows), ""])
        )
    return target


def sentences() -> Iterator[str]:
    """The documentation's sentences of at least seven words, without repetitions."""
    texts = (" ".join(text.split()) for text in all_docstrings(dict(standard_modules())))
    found = (match[0] for text in texts for match in SENTENCE.finditer(text))
    yield from dict.fromkeys(text for text in found if len(text.split()) >= 7)


def _acceptable(text: str, other: str, chance: random.Random) -> list[str]:
    words, label = text.split(), chance.randrange(2)
    if not label:
        place = chance.randrange(1, len(words) - 1)
        if chance.random() < 0.5:
            words[place - 1], words[place] = words[place], words[place - 1]
        else:
            del words[place]
    return [" ".join(words), str(label)]


def _paraphrase(text: str, other: str, chance: random.Random) -> list[str]:
    words, label = text.split(), chance.randrange(2)
    del words[chance.randrange(len(words))]
    if not label:
        words[chance.randrange(len(words))] = chance.choice(other.split())
    return [text, " ".join(words), str(label)]


def _similar(text: str, other: str, chance: random.Random) -> list[str]:
    words, strange = text.split(), other.split()
    places = chance.sample(range(len(words)), chance.randrange(len(words) + 1))
    for place in places:
        words[place] = chance.choice(strange)
    return [text, " ".join(words), f"{5 * (1 - len(places) / len(words)):.2f}"]


MAKERS: dict[str, tuple[list[str], Callable[[str, str, random.Random], list[str]]]] = {
    "cola": (["sentence", "label"], _acceptable),
    "mrpc": (["sentence1", "sentence2", "label"], _paraphrase),
    "stsb": (["sentence1", "sentence2", "label"], _similar),
}
