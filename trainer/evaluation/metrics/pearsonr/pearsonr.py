"""Pearson's correlation coefficient, as a module for `evaluate.load`."""

import math
import warnings

import datasets
import evaluate
import numpy as np
from scipy import stats


def correlate(predictions: list[float], references: list[float]) -> tuple[float, float]:
    """Pearson's r and its p-value; NaN where it is undefined: fewer than two numbers, one side constant or not
    finite.
    """
    sides = np.asarray([predictions, references], dtype=np.float64)
    if sides.shape[1] < 2 or not np.isfinite(sides).all() or (sides == sides[:, :1]).all(axis=1).any():
        return math.nan, math.nan
    with warnings.catch_warnings():
        # Of an untrained model's predictions; the figure is defined, only its last digits are not.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        result = stats.pearsonr(sides[0], sides[1])
    return float(result.statistic), float(result.pvalue)


class Pearsonr(evaluate.Metric):  # type: ignore[misc]
    """The linear correlation of predicted and true numbers, from -1 to 1; NaN where it is undefined."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="The linear correlation of predicted and true numbers, from -1 to 1; NaN where it is "
            "undefined.",
            citation="",
            inputs_description="return_pvalue: give p-value too.",
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _compute(
        self, *, predictions: list[float], references: list[float], return_pvalue: bool = False
    ) -> dict[str, float]:
        figure, pvalue = correlate(predictions, references)
        return {"pearsonr": figure, "p-value": pvalue} if return_pvalue else {"pearsonr": figure}
