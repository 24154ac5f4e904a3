"""How well each class is told, and which is taken for which; of labels of words, how well the entities are found."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from trainer.data.labelled.encoded import EncodedSplit, EncodedWords
from trainer.evaluation.metrics.measures import marks_entities, score_entities
from trainer.records.evaluations import Classification, ClassScore


def classify_split(held: EncodedSplit, predicted: NDArray[Any], names: Sequence[str]) -> Classification:
    """The figures of each class, or of each type of entity that the labels of words mark, of the labelled examples."""
    examples = np.flatnonzero(held.labelled)
    rows = held.rows(examples)
    sides = (predicted[rows], held.labels[rows])
    if not (isinstance(held, EncodedWords) and marks_entities(names)):
        return classify(*sides, names)
    # There is no matrix: an entity is found or not.
    told, true = (held.words.named(examples, each, names) for each in sides)
    return Classification(confusion=[], classes=_scores(score_entities(told, true, names)))


def classify(predicted: NDArray[Any], labels: NDArray[Any], names: Sequence[str]) -> Classification:
    """The confusion matrix (rows are labels, columns predictions) and each class's precision, recall, F1 and support.

    There is no matrix where several classes may apply: a mistake is then no confusion of one class with another.
    """
    classes = list(range(len(names)))
    figures = precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0.0)
    return Classification(
        confusion=[] if labels.ndim > 1 else confusion_matrix(labels, predicted, labels=classes).tolist(),
        classes=_scores(zip(names, *figures, strict=True)),
    )


def _scores(figures: Iterable[tuple[str, Any, Any, Any, Any]]) -> list[ClassScore]:
    return [
        ClassScore(name=name, precision=float(precision), recall=float(recall), f1=float(f1), support=int(support))
        for name, precision, recall, f1, support in figures
    ]
