"""Figures of labels of words: of the entities that they mark, as `seqeval` has them, and of the words alone."""

import re
from collections.abc import Sequence
from typing import Any

SEQEVAL, WORD_ACCURACY = "seqeval", "word_accuracy"
TAGS = (SEQEVAL, WORD_ACCURACY)
"""Precision, recall and F1 of whole entities with the accuracy of words; and that accuracy alone."""

TAG = re.compile(r"[BIES]-.+|[BIESO]")

Sentences = list[list[str]]
"""The labels of the words of each example."""


def marks_entities(classes: Sequence[str]) -> bool:
    """Whether labels say of words where entities begin and go on: B-X, I-X, O, also E-X and S-X, as `seqeval` reads them."""
    return all(TAG.fullmatch(name) for name in classes) and any(name.startswith(("B", "I")) for name in classes)


class Tags:
    """One of these metrics, with what `Metrics` calls of a module of `evaluate`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: Sentences = []
        self._true: Sentences = []

    def add_batch(self, predictions: Sentences, references: Sentences) -> None:
        """Take in the labels that are told and those that are true."""
        self._told += predictions
        self._true += references

    def compute(self) -> dict[str, float]:
        """The figures of all that was taken in since the last call."""
        from seqeval.metrics import accuracy_score
        from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

        told, true, self._told, self._true = self._told, self._true, [], []
        accuracy = float(accuracy_score(true, told))
        if self._name == WORD_ACCURACY:
            return {"accuracy": accuracy}
        precision, recall, f1, _ = precision_recall_fscore_support(true, told, average="micro", zero_division=0)
        return {"precision": float(precision), "recall": float(recall), "f1": float(f1), "accuracy": accuracy}


def score_entities(told: Sentences, true: Sentences, classes: Sequence[str]) -> list[tuple[str, Any, Any, Any, Any]]:
    """Precision, recall, F1 and number of the true entities of each type that the classes name; 0 where there are none."""
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    met = sorted({kind for kind, *_ in [*get_entities(true), *get_entities(told)]})
    figures = precision_recall_fscore_support(true, told, average=None, zero_division=0) if met else ()
    found = {kind: (kind, *rest) for kind, *rest in zip(met, *figures, strict=True)}
    named = dict.fromkeys(name.partition("-")[2] or "_" for name in classes if name != "O")
    return [found.get(kind, (kind, 0.0, 0.0, 0.0, 0)) for kind in named]
