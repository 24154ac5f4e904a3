"""Figures where several labels may apply to an example, as scikit-learn has them of an indicator matrix."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        """The figure of all that was taken in since the last call: F1 = 2 hits / (predicted + true), 0 where both are none."""
        hits, either = np.atleast_1d(self._hits), np.atleast_1d(self._either)
        figures = {
            "subset_accuracy": self._exact / self._examples,
            "f1_micro": 2 * int(hits.sum()) / max(int(either.sum()), 1),
            "f1_macro": float(np.mean(2 * hits / np.maximum(either, 1))),
        }
        self._clear()
        return {self._name: figures[self._name]}
