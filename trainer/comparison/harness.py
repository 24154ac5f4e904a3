"""What is compared of lm-eval's figures: those of a task with the same definition and data, asked in the same way."""

from typing import Any

from trainer.comparison.runs import Measured
from trainer.records.basis import HarnessResult, task_of


def measured_by_harness(evaluation: dict[str, Any]) -> Measured:
    """The figures that stand beside an evaluation, if there are some."""
    if "harness" not in evaluation:
        return {}
    result = HarnessResult(**evaluation["harness"])
    return {name: (value, result.tasks[str(task_of(name))].identity) for name, value in result.figures().items()}
