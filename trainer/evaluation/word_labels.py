"""What a model says of words that each have a label: how well it tells them, and the lines of its predictions."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.evaluation.predicting import prediction_lines, probabilities
from trainer.labelled.encoded import EncodedSplit
from trainer.labelled.words import Words
from trainer.metrics.tags import score_entities
from trainer.records.evaluations import Classification, ClassScore


def classify_entities(words: Words, predicted: NDArray[Any], labels: NDArray[Any], names: Sequence[str]) -> Classification:
    """The figures of each type of entity that the labels of all words mark. There is no matrix: an entity is found or not."""
    told, true = (words.named(None, each, names) for each in (predicted, labels))
    return Classification(
        confusion=[],
        classes=[
            ClassScore(name=name, precision=float(p), recall=float(r), f1=float(f), support=int(s))
            for name, p, r, f, s in score_entities(told, true, names)
        ],
    )


def split_lines(split: EncodedSplit, logits: NDArray[np.float32], classes: list[str] | None, several: bool) -> Iterator[str]:
    """The lines of a split's predictions, of its words if each has a label."""
    if split.words is None:
        return prediction_lines(split.ids, logits, classes, several)
    assert classes is not None
    return word_lines(split, logits, classes)


def word_lines(split: EncodedSplit, logits: NDArray[np.float32], classes: Sequence[str]) -> Iterator[str]:
    """A JSON object for each example: its name, and of each word its likeliest class and how likely that is.

    Both are null for a word that the model does not see.
    """
    assert split.words is not None
    told = iter(logits.argmax(axis=1).tolist())
    chances = iter(probabilities(logits).max(axis=1).tolist())
    for name, seen in zip(split.ids, split.words.by_example(), strict=True):
        line = {
            "id": name,
            "prediction": [classes[next(told)] if each else None for each in seen.tolist()],
            "probabilities": [round(next(chances), 6) if each else None for each in seen.tolist()],
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"
