"""Spearman's rank correlation coefficient, as a module for `evaluate.load`."""

import math

import datasets
import evaluate
import numpy as np
from scipy import stats


def correlate(predictions: list[float], references: list[float]) -> tuple[float, float]:
    """Spearman's rho and its p-value; NaN where it is undefined: fewer than two numbers, one side constant or a NaN."""
    sides = np.asarray([predictions, references], dtype=np.float64)
    if sides.shape[1] < 2 or (sides == sides[:, :1]).all(axis=1).any():
        return math.nan, math.nan
    result = stats.spearmanr(sides[0], sides[1])
    return float(result.statistic), float(result.pvalue)


class Spearmanr(evaluate.Metric):  # type: ignore[misc]
    """The correlation of the ranks of predicted and true numbers, from -1 to 1; NaN where it is undefined."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="The correlation of the ranks of predicted and true numbers, from -1 to 1; NaN where it is "
            "undefined.",
            citation="",
            inputs_description="return_pvalue: give spearmanr_pvalue too.",
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _compute(
        self, *, predictions: list[float], references: list[float], return_pvalue: bool = False
    ) -> dict[str, float]:
        figure, pvalue = correlate(predictions, references)
        return {"spearmanr": figure, "spearmanr_pvalue": pvalue} if return_pvalue else {"spearmanr": figure}
