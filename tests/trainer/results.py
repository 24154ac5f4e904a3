"""Results of measurements, made up."""

from typing import Any

from trainer.records.basis import ExamplesBasis
from trainer.records.evaluations import FORMAT, Result, Scores

ON = ExamplesBasis(examples="ab", metrics=[], precision="fp32")


def a_result(figures: dict[str, dict[str, float]], **told: Any) -> Result:
    """A result with these figures by split, or by what else is told."""
    groups = {name: Scores(figures=each) for name, each in figures.items()}
    values: dict[str, Any] = {
        "format": FORMAT, "fingerprint": "ab", "recipe": {}, "key": "runs/a/eval.json", "checkpoint": "runs/a/final",
        "by": "split", "groups": groups, "measured_on": ON, **told,
    }  # fmt: skip
    return Result(**values)
