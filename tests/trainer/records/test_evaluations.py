"""Results of measurements as they are shown."""

import json
import math

from tests.trainer.results import a_result


def test_small_figures_do_not_seem_to_be_zero_and_figures_near_one_not_to_be_one() -> None:
    result = a_result({"validation": {"loss": 2.22e-6, "pearsonr": -0.99996}})
    assert result.describe() == "loss 2.22e-06, pearsonr -0.99996"
    exact = a_result({"validation": {"loss": 0.25, "accuracy": 0.99996}})
    assert exact.describe() == "loss 0.2500, accuracy 0.99996"
    assert exact.lines() == ["validation loss 0.2500, accuracy 0.99996"]
    assert result.rows() == [{"split": "validation", "loss": 2.22e-6, "pearsonr": -0.99996}]


def test_a_table_of_figures_that_are_not_finite_is_json() -> None:
    result = a_result({"validation": {"loss": math.inf, "f1": math.nan}})
    assert result.describe() == "loss inf, f1 nan"
    shown = json.dumps(result.rows(), allow_nan=False)
    assert json.loads(shown) == [{"split": "validation", "loss": None, "f1": None}]
