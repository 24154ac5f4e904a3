"""Matthews' correlation coefficient, as a module for `evaluate.load`."""

from typing import Any

import datasets
import evaluate
from sklearn.metrics import matthews_corrcoef


class MatthewsCorrelation(evaluate.Metric):  # type: ignore[misc]
    """The correlation of predicted and true classes, two or more, from -1 to 1; 0 where one side is constant."""

    def _info(self) -> evaluate.MetricInfo:
        ids = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="The correlation of predicted and true classes, from -1 to 1; 0 where one side is constant.",
            citation="",
            inputs_description="sample_weight: one weight an example.",
            features=datasets.Features({"predictions": ids, "references": ids}),
        )

    def _compute(self, *, predictions: list[int], references: list[int], sample_weight: Any = None) -> dict[str, float]:
        # With one class alone scikit-learn gives 0 too, but warns of a confusion matrix that nobody asked for.
        alone = len({*predictions, *references}) < 2
        figure = 0.0 if alone else matthews_corrcoef(references, predictions, sample_weight=sample_weight)
        return {"matthews_correlation": float(figure)}
