"""Results of measurements, made up."""

from typing import Any

from trainer.records.basis import ExamplesBasis
from trainer.records.evaluations import FORMAT, Result, Scores
from trainer.store.manifest import fingerprint

ON = ExamplesBasis(examples="ab", metrics=[], precision="fp32")


def a_result(figures: dict[str, dict[str, float]], by: str = "split", of: str = "", **told: Any) -> Result:
    """A result with these figures, and a loss, by split, or by what else is told; `of` is all that decides them."""
    loss = {} if by == "task" else {"loss": 1.0}
    recipe = {"of": of}
    values: dict[str, Any] = {
        "format": FORMAT, "fingerprint": fingerprint(recipe), "recipe": recipe, "key": "runs/a/eval.json",
        "checkpoint": "runs/a/final", "by": by, "measured_on": ON,
        "groups": {name: Scores(figures={**loss, **each}) for name, each in figures.items()}, **told,
    }  # fmt: skip
    return Result(**values)
