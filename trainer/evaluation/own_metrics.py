"""The metrics that come along: figures of scikit-learn, scipy and seqeval.

What language models are measured by is computed in `trainer/kinds/pretraining/measure.py`; a new figure of theirs goes
there.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Figure = Callable[..., float]
"""A figure of the true and the predicted class ids, or numbers, of shape [N], and of options."""

Sentences = list[list[str]]
"""The labels of the words of each example."""


def of_scikit(name: str, **options: Any) -> Figure:
    """The function of scikit-learn's metrics with this name, which is loaded when it is called."""

    def figure(true: NDArray[Any], told: NDArray[Any], **more: Any) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(true, told, **options, **more))

    return figure


def matthews(true: NDArray[np.int64], told: NDArray[np.int64]) -> float:
    """Matthews' correlation coefficient of classes, two or more; 0 where one side is constant."""
    # With one class alone scikit-learn gives 0 too, but warns of a confusion matrix that nobody asked for.
    alone = len(np.union1d(true, told)) < 2
    return 0.0 if alone else of_scikit("matthews_corrcoef")(true, told)


def correlation(name: str) -> Figure:
    """A correlation of scipy's; NaN where it is undefined: fewer than two numbers, one side constant or not finite."""

    def figure(true: NDArray[np.float64], told: NDArray[np.float64]) -> float:
        from scipy import stats

        sides = np.stack([true, told])
        if sides.shape[1] < 2 or not np.isfinite(sides).all() or (sides == sides[:, :1]).all(axis=1).any():
            return math.nan
        with warnings.catch_warnings():
            # Of an untrained model's predictions; the figure is defined, only its last digits are not.
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)
            return float(getattr(stats, name)(told, true).statistic)

    return figure


def squared_error(true: NDArray[np.float64], told: NDArray[np.float64]) -> float:
    """The mean squared error, in the square of the label's unit; NaN where a number is not finite."""
    # scikit-learn refuses what is not finite, and a model that diverged should be seen, not end the run.
    return of_scikit("mean_squared_error")(true, told) if np.isfinite([true, told]).all() else math.nan


ACCURACY: dict[str, Figure] = {"accuracy": of_scikit("accuracy_score")}
F1: dict[str, Figure] = {"f1": of_scikit("f1_score", zero_division=0.0)}

MATTHEWS: dict[str, Figure] = {"matthews_correlation": matthews}

FIGURES: dict[str, Mapping[str, Figure]] = {
    "accuracy": ACCURACY,
    "f1": F1,
    "precision": {"precision": of_scikit("precision_score", zero_division=0.0)},
    "recall": {"recall": of_scikit("recall_score", zero_division=0.0)},
    "matthews_correlation": MATTHEWS,
    "pearsonr": {"pearsonr": correlation("pearsonr")},
    "spearmanr": {"spearmanr": correlation("spearmanr")},
    "mse": {"mse": squared_error},
    "glue/cola": MATTHEWS,
    "glue/sst2": ACCURACY,
    **{f"glue/{name}": {**ACCURACY, **F1} for name in ("mrpc", "qqp")},
    **{f"glue/{name}": ACCURACY for name in ("mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans")},
    "glue/stsb": {"pearson": correlation("pearsonr"), "spearmanr": correlation("spearmanr")},
}
"""What each metric of one label an example gives, by the names that the modules of `evaluate` give their figures."""

OF_NUMBERS = ("pearsonr", "spearmanr", "mse", "glue/stsb")
"""Those of labels that are numbers; the others are of classes."""


class OneLabel:
    """Figures of examples that have one label each, with what `Metrics` calls of a module of `evaluate`."""

    def __init__(self, figures: Mapping[str, Figure], dtype: type) -> None:
        self._figures, self._dtype = figures, dtype
        self._told: list[NDArray[Any]] = []
        self._true: list[NDArray[Any]] = []

    def add_batch(self, predictions: NDArray[Any], references: NDArray[Any]) -> None:
        """Take in predicted and true class ids, or numbers, of shape [B]."""
        self._told.append(np.asarray(predictions, self._dtype))
        self._true.append(np.asarray(references, self._dtype))

    def compute(self, **options: Any) -> dict[str, float]:
        """The figures of all that was taken in since the last call."""
        true, told = np.concatenate(self._true), np.concatenate(self._told)
        self._told, self._true = [], []
        return {name: figure(true, told, **options) for name, figure in self._figures.items()}


SEVERAL = ("subset_accuracy", "f1_micro", "f1_macro")
"""The share of examples all of whose labels are told, and F1 over all labels, or its mean over the classes."""


class SeveralLabels:
    """One of these figures, with what `Metrics` calls of a module of `evaluate`. It counts; no example is kept."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._clear()

    def _clear(self) -> None:
        self._examples, self._exact = 0, 0
        self._hits: NDArray[np.int64] | int = 0
        self._either: NDArray[np.int64] | int = 0

    def add_batch(self, predictions: NDArray[Any], references: NDArray[Any]) -> None:
        """Take in which classes are predicted and which apply, 0 or 1, of shape [B, C]."""
        told, true = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
        self._examples += len(true)
        self._exact += int((told == true).all(axis=1).sum())
        self._hits = self._hits + (told * true).sum(axis=0)
        self._either = self._either + (told + true).sum(axis=0)

    def compute(self) -> dict[str, float]:
        """The figure of all that was taken in since the last call: F1 = 2 hits / (predicted + true), 0 where both are
        none.
        """
        hits, either = np.atleast_1d(self._hits), np.atleast_1d(self._either)
        figures = {
            "subset_accuracy": self._exact / self._examples,
            "f1_micro": 2 * int(hits.sum()) / max(int(either.sum()), 1),
            "f1_macro": float(np.mean(2 * hits / np.maximum(either, 1))),
        }
        self._clear()
        return {self._name: figures[self._name]}


SEQEVAL, WORD_ACCURACY = "seqeval", "word_accuracy"
TAGS = (SEQEVAL, WORD_ACCURACY)
"""Precision, recall and F1 of whole entities with the accuracy of words; and that accuracy alone."""

TAG = re.compile(r"[BIES]-.+|[BIESO]")


def marks_entities(classes: Sequence[str]) -> bool:
    """Whether labels say of words where entities begin and go on: B-X, I-X, O, also E-X and S-X, as `seqeval` reads
    them.
    """
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
    """Precision, recall, F1 and number of the true entities of each type that the classes name; 0 where there are
    none.
    """
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    met = sorted({kind for kind, *_ in [*get_entities(true), *get_entities(told)]})
    figures = precision_recall_fscore_support(true, told, average=None, zero_division=0) if met else ()
    found = {kind: (kind, *rest) for kind, *rest in zip(met, *figures, strict=True)}
    named = dict.fromkeys(name.partition("-")[2] or "_" for name in classes if name != "O")
    return [found.get(kind, (kind, 0.0, 0.0, 0.0, 0)) for kind in named]
