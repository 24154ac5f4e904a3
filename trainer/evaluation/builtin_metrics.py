"""Built-in metrics: figures of scikit-learn, scipy and seqeval.

For metrics of fine-tuning on labelled data. Figures of pretraining are computed in
`trainer/kinds/pretraining/measure.py`, those of conversations and preferences in the `workload.py` of their kinds.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Figure = Callable[..., float]
"""Computes a figure from true values, predictions and options. Both sides are class ids or numbers, of shape [N],
indicators of classes, of shape [N, C], or labels of words."""

Sentences = list[list[str]]
"""The labels of the words of each example."""


def of_library(module: str, name: str, **options: Any) -> Figure:
    """The function `name` of a library's module, which is imported when the function is called."""

    def figure(true: Any, predicted: Any, **more: Any) -> float:
        return float(getattr(import_module(module), name)(true, predicted, **options, **more))

    return figure


def of_scikit(name: str, **options: Any) -> Figure:
    """The function `name` of scikit-learn's metrics."""
    return of_library("sklearn.metrics", name, **options)


def matthews(true: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Matthews correlation coefficient of two or more classes; 0 if one side is constant."""
    # For a single class scikit-learn returns 0 too, but warns about its confusion matrix.
    alone = len(np.union1d(true, predicted)) < 2
    return 0.0 if alone else of_scikit("matthews_corrcoef")(true, predicted)


def correlation(name: str) -> Figure:
    """A correlation of scipy; NaN for fewer than two numbers, or if one side is constant or not finite."""

    def figure(true: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
        from scipy import stats

        sides = np.stack([true, predicted])
        if sides.shape[1] < 2 or not np.isfinite(sides).all() or (sides == sides[:, :1]).all(axis=1).any():
            return math.nan
        with warnings.catch_warnings():
            # Happens for an untrained model; only the last digits of the figure are uncertain.
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)
            return float(getattr(stats, name)(predicted, true).statistic)

    return figure


def squared_error(true: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """The mean squared error, in the square of the label's unit; NaN if a number is not finite."""
    # scikit-learn raises on numbers that are not finite, but a diverged model should be reported, not end the run.
    return of_scikit("mean_squared_error")(true, predicted) if np.isfinite([true, predicted]).all() else math.nan


def all_labels_right(true: NDArray[np.int8], predicted: NDArray[np.int8]) -> float:
    """The share of examples with all labels predicted correctly."""
    return float((predicted == true).all(axis=1).mean())


def f1_micro(true: NDArray[np.int8], predicted: NDArray[np.int8]) -> float:
    """F1 over all labels, also for a single class: 2 hits / (predicted + true); 0 if both are 0."""
    return 2 * int((predicted * true).sum()) / max(int(predicted.sum() + true.sum()), 1)


def f1_macro(true: NDArray[np.int8], predicted: NDArray[np.int8]) -> float:
    """The mean of the classes' F1."""
    return float(np.mean(2 * (predicted * true).sum(axis=0) / np.maximum(predicted.sum(axis=0) + true.sum(axis=0), 1)))


ACCURACY: dict[str, Figure] = {"accuracy": of_scikit("accuracy_score")}
F1: dict[str, Figure] = {"f1": of_scikit("f1_score", zero_division=0.0)}
MATTHEWS: dict[str, Figure] = {"matthews_correlation": matthews}
OF_WORDS: dict[str, Figure] = {"accuracy": of_library("seqeval.metrics", "accuracy_score")}
OF_ENTITIES: dict[str, Figure] = {
    name: of_library("seqeval.metrics", f"{name}_score", zero_division=0) for name in ("precision", "recall", "f1")
}

SEQEVAL, WORD_ACCURACY = "seqeval", "word_accuracy"

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
    "subset_accuracy": {"subset_accuracy": all_labels_right},
    "f1_micro": {"f1_micro": f1_micro},
    "f1_macro": {"f1_macro": f1_macro},
    SEQEVAL: {**OF_ENTITIES, **OF_WORDS},
    WORD_ACCURACY: OF_WORDS,
}
"""The figures of each metric, by the names that the modules of `evaluate` use."""

AT_MOST_ONE = {name for figures in FIGURES.values() for name in figures} - {"mse"}

OF_NUMBERS = ("pearsonr", "spearmanr", "mse", "glue/stsb")
SEVERAL = ("subset_accuracy", "f1_micro", "f1_macro")
TAGS = (SEQEVAL, WORD_ACCURACY)
"""Metrics for numbers, for several labels per example, and for labels of words; all others are for classes."""


class BuiltinMetric:
    """Built-in figures with the interface of a module of `evaluate`. `dtype` is None for labels of words."""

    def __init__(self, figures: Mapping[str, Figure], dtype: type | None) -> None:
        self._figures, self._dtype = figures, dtype
        self._predicted: list[Any] = []
        self._true: list[Any] = []

    def add_batch(self, predictions: NDArray[Any] | Sentences, references: NDArray[Any] | Sentences) -> None:
        """Add predictions and true values, as `Metrics.add_batch` does."""
        for kept, side in ((self._predicted, predictions), (self._true, references)):
            kept.append(side if self._dtype is None else np.asarray(side, self._dtype))

    def compute(self, **options: Any) -> dict[str, float]:
        """The figures of all batches added since the last call."""
        join: Callable[[list[Any]], Any] = np.concatenate if self._dtype else lambda side: [*chain(*side)]
        true, predicted = join(self._true), join(self._predicted)
        self._predicted, self._true = [], []
        return {name: figure(true, predicted, **options) for name, figure in self._figures.items()}


TAG = re.compile(r"[BIES]-.+|[BIESO]")


def marks_entities(classes: Sequence[str]) -> bool:
    """Whether word labels mark entities in a scheme that `seqeval` reads: B-X, I-X and O, also E-X and S-X."""
    return all(TAG.fullmatch(name) for name in classes) and any(name.startswith(("B", "I")) for name in classes)


def score_entities(
    predicted: Sentences, true: Sentences, classes: Sequence[str]
) -> list[tuple[str, Any, Any, Any, Any]]:
    """Type, precision, recall, F1 and number of true entities, for each type in the classes; 0 if there are none."""
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    met = sorted({kind for kind, *_ in [*get_entities(true), *get_entities(predicted)]})
    figures = precision_recall_fscore_support(true, predicted, average=None, zero_division=0) if met else ()
    found = {kind: (kind, *rest) for kind, *rest in zip(met, *figures, strict=True)}
    named = dict.fromkeys(name.partition("-")[2] or "_" for name in classes if name != "O")
    return [found.get(kind, (kind, 0.0, 0.0, 0.0, 0)) for kind in named]
