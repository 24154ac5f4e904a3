"""The lines of predictions of a split: of its examples, or of their words if each has a label."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.data.labelled.encoded import EncodedSplit, EncodedWords
from trainer.evaluation.predicting import prediction_lines, probabilities


def split_lines(split: EncodedSplit, logits: NDArray[np.float32], classes: list[str] | None, several: bool) -> Iterator[str]:
    """The lines of a split's predictions, of its words if each has a label."""
    if not isinstance(split, EncodedWords):
        return prediction_lines(split.ids, logits, classes, several)
    assert classes is not None
    return word_lines(split, logits, classes)


def word_lines(split: EncodedWords, logits: NDArray[np.float32], classes: Sequence[str]) -> Iterator[str]:
    """A JSON object for each example: its name, and of each word its likeliest class and how likely that is.

    Both are null for a word that the model does not see.
    """
    told = iter(logits.argmax(axis=1).tolist())
    chances = iter(probabilities(logits).max(axis=1).tolist())
    for name, seen in zip(split.ids, split.words.by_example(), strict=True):
        line = {
            "id": name,
            "prediction": [classes[next(told)] if each else None for each in seen.tolist()],
            "probabilities": [round(next(chances), 6) if each else None for each in seen.tolist()],
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"
