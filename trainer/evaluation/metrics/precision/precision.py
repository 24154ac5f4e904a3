"""Precision, as a module for `evaluate.load`."""

from typing import Any

import datasets
import evaluate
from sklearn.metrics import precision_score


class Precision(evaluate.Metric):  # type: ignore[misc]
    """The share of the examples predicted as a class that are of it, from 0 to 1."""

    def _info(self) -> evaluate.MetricInfo:
        ids = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="The share of the examples predicted as a class that are of it, from 0 to 1.",
            citation="",
            inputs_description="average: binary (of class pos_label), micro, macro, weighted, or None: a figure a "
            "class. labels: the classes to take in. zero_division: the figure where it is undefined.",
            features=datasets.Features({"predictions": ids, "references": ids}),
        )

    def _compute(
        self,
        *,
        predictions: list[int],
        references: list[int],
        labels: list[int] | None = None,
        pos_label: int = 1,
        average: str | None = "binary",
        sample_weight: Any = None,
        zero_division: float = 0.0,
    ) -> dict[str, Any]:
        figure = precision_score(
            references,
            predictions,
            labels=labels,
            pos_label=pos_label,
            average=average,
            sample_weight=sample_weight,
            zero_division=zero_division,
        )
        return {"precision": figure if average is None else float(figure)}
