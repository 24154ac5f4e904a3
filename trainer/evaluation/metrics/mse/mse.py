"""The mean squared error, as a module for `evaluate.load`."""

import math
from typing import Any

import datasets
import evaluate
import numpy as np
from sklearn.metrics import mean_squared_error


class Mse(evaluate.Metric):  # type: ignore[misc]
    """The mean squared error, in the square of the label's unit; NaN where a number is not finite."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="The mean squared error, in the square of the label's unit; NaN where a number is not finite.",
            citation="",
            inputs_description="squared: false gives its root. sample_weight: one weight an example.",
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _compute(
        self, *, predictions: list[float], references: list[float], sample_weight: Any = None, squared: bool = True
    ) -> dict[str, float]:
        # scikit-learn refuses what is not finite, and a model that diverged should be seen, not end the run.
        if not np.isfinite([predictions, references]).all():
            return {"mse": math.nan}
        error = float(mean_squared_error(references, predictions, sample_weight=sample_weight))
        return {"mse": error if squared else math.sqrt(error)}
