"""Accuracy, as a module for `evaluate.load`."""

from typing import Any

import datasets
import evaluate
from sklearn.metrics import accuracy_score


class Accuracy(evaluate.Metric):  # type: ignore[misc]
    """The share of predictions that are right, from 0 to 1."""

    def _info(self) -> evaluate.MetricInfo:
        ids = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="The share of predictions that are right, from 0 to 1.",
            citation="",
            inputs_description="normalize: false counts them instead. sample_weight: one weight an example.",
            features=datasets.Features({"predictions": ids, "references": ids}),
        )

    def _compute(
        self, *, predictions: list[int], references: list[int], normalize: bool = True, sample_weight: Any = None
    ) -> dict[str, float]:
        share = accuracy_score(references, predictions, normalize=normalize, sample_weight=sample_weight)
        return {"accuracy": float(share)}
