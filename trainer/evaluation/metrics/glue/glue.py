"""The figures of the GLUE benchmark's tasks, as a module for `evaluate.load`; the configuration names the task."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def matthews(references: list[int], predictions: list[int]) -> float:
    """Matthews' correlation coefficient; 0 where one side is constant."""
    # With one class alone scikit-learn gives 0 too, but warns of a confusion matrix that nobody asked for.
    return float(matthews_corrcoef(references, predictions)) if len({*predictions, *references}) > 1 else 0.0


def f1(references: list[int], predictions: list[int]) -> float:
    """F1 of class 1; 0 where there is no such example."""
    return float(f1_score(references, predictions, zero_division=0.0))


def correlate(measure: Callable[..., Any], references: list[float], predictions: list[float]) -> float:
    """A correlation; NaN where it is undefined: fewer than two numbers, one side constant or not finite."""
    sides = np.asarray([references, predictions], dtype=np.float64)
    if sides.shape[1] < 2 or not np.isfinite(sides).all() or (sides == sides[:, :1]).all(axis=1).any():
        return math.nan
    with warnings.catch_warnings():
        # Of an untrained model's predictions; the figure is defined, only its last digits are not.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(measure(sides[0], sides[1]).statistic)


def pearson(references: list[float], predictions: list[float]) -> float:
    """Pearson's r."""
    return correlate(stats.pearsonr, references, predictions)


def spearman(references: list[float], predictions: list[float]) -> float:
    """Spearman's rho."""
    return correlate(stats.spearmanr, references, predictions)


ACCURACY: dict[str, Callable[..., float]] = {"accuracy": accuracy_score}
TASKS: dict[str, dict[str, Callable[..., float]]] = {
    "cola": {"matthews_correlation": matthews},
    "stsb": {"pearson": pearson, "spearmanr": spearman},
    **{name: {**ACCURACY, "f1": f1} for name in ("mrpc", "qqp")},
    **{name: ACCURACY for name in ("sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans")},
}


class Glue(evaluate.Metric):  # type: ignore[misc]
    """The figures that GLUE reports for a task."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in TASKS:
            raise ValueError(f"glue has no task {self.config_name!r}; its tasks are {', '.join(TASKS)}")
        value = datasets.Value("float64" if self.config_name == "stsb" else "int64")
        return evaluate.MetricInfo(
            description=f"The figures that GLUE reports for {self.config_name}: {', '.join(TASKS[self.config_name])}.",
            citation="",
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, *, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return {key: float(measure(references, predictions)) for key, measure in TASKS[self.config_name].items()}
