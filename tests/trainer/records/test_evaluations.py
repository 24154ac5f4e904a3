"""Results of measurements as they are shown."""

import json
import math
from typing import Any

import pytest

from tests.trainer.records.test_basis import ON
from tests.trainer.results import a_result
from trainer.records.basis import HarnessBasis, TextBasis
from trainer.records.evaluations import HarnessRun, Result, Scores, Task


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


def test_the_loss_comes_first_though_json_sorts_figures_by_name() -> None:
    scores = Scores(figures={"accuracy": 0.5, "bits_per_byte": 1.5, "loss": 2.0, "perplexity": 7.4})
    assert list(scores.figures) == ["loss", "perplexity", "bits_per_byte", "accuracy"]


def of_corpora(**losses: float) -> Result:
    """A result by corpus on as much text of each, so the loss over all is the mean."""
    total = Scores(figures={"loss": sum(losses.values()) / len(losses)})
    basis = ON.model_copy(update={"held_out": {name: f"text of {name}" for name in losses}})
    return a_result({name: {"loss": each} for name, each in losses.items()}, "corpus", total=total, measured_on=basis)


def of_task(**changes: Any) -> Result:
    scores = Scores(figures={"acc": 0.25}, counts={"examples": 4})
    asked = HarnessRun(lm_eval="1", tasks={"quiz": Task(version="1", identity="ab")})
    told = {"groups": {"quiz": scores}, "asked": asked, "measured_on": HarnessBasis(harness={"quiz": "ab"})}
    return a_result({}, "task", **{**told, **changes})


def test_a_gate_judges_all_corpora_together_and_tasks_by_their_own_names() -> None:
    result = of_corpora(a=1.0, b=4.0)
    assert result.figures() == {"loss": 2.5} and result.by_group() == {"a": {"loss": 1.0}, "b": {"loss": 4.0}}
    beside = result.beside(of_task())
    assert beside.figures() == {"loss": 2.5, "harness/quiz/acc": 0.25}
    assert beside.by_group() == {**result.by_group(), "harness": {"quiz/acc": 0.25}}


def test_a_corpus_or_a_split_is_compared_by_its_own_data_alone() -> None:
    result = of_corpora(a=1.0, b=4.0)
    whole, alone = (result.basis_of(group) for group in (None, "b"))
    assert whole == result.measured_on and alone is not None and alone != whole
    assert alone == of_corpora(b=4.0).measured_on
    short = result.measured_on.model_copy(update={"begun": {"a": 2}})
    of_a, of_b = (result.model_copy(update={"measured_on": short}).basis_of(group) for group in "ab")
    assert isinstance(of_a, TextBasis) and of_a.begun == {"a": 2} and of_b == alone
    splits = a_result({"validation": {}, "test": {}})
    assert splits.basis_of("validation") == splits.measured_on and splits.basis_of("test") is None


def test_figures_without_what_they_were_measured_on_are_refused() -> None:
    uncounted = {"quiz": Scores(figures={"acc": 0.25}), "other": Scores(figures={}, counts={"examples": 4})}
    for changes, problem in (
        ({"measured_on": HarnessBasis(harness={})}, "measured_on lacks quiz"),
        ({"asked": None}, "measured_on lacks quiz"),
        ({"groups": uncounted}, "it does not count the examples of each task"),
    ):
        with pytest.raises(ValueError, match=problem):
            of_task(**changes)
    two = {name: Scores(figures={"loss": 1.0}) for name in ("a", "unknown")}
    with pytest.raises(ValueError, match="measured_on lacks unknown"):
        a_result({}, "corpus", groups=two, total=two["a"], measured_on=of_corpora(a=1.0).measured_on)
