"""What says which checkpoint of a run is best, and what of a job decides that."""

from typing import Any

from trainer.config.evaluation import PREFIX, SelectionConfig, TrainedHarnessConfig
from trainer.evaluation.metrics import greater_is_better
from trainer.records.evaluations import Criterion

BY_LOSS = Criterion("loss", greater_is_better=False)


def criterion_of(options: SelectionConfig) -> Criterion:
    """What says which checkpoint is best."""
    return Criterion(options.best_by, greater_is_better(options.best_by, options.greater_is_better))


def describe_selection(options: SelectionConfig, harness: TrainedHarnessConfig | None) -> dict[str, Any]:
    """What decides which checkpoint of a language model is best, where that is not the loss: the figure, and the task
    that has it.

    Raises `ConfigError` if lm-eval is to measure it and is not installed, or files of the task are not there.
    """
    criterion = criterion_of(options)
    if criterion == BY_LOSS:
        return {}
    told: dict[str, Any] = {"best_by": criterion.figure, "greater_is_better": criterion.greater_is_better}
    if harness is not None and criterion.figure.startswith(PREFIX):
        from trainer.evaluation.harness_identity import describe_task, identify, installed_version

        task = criterion.figure.split("/")[1]
        identity = identify(harness.model_copy(update={"tasks": [task]}), installed_version())[task]
        told["task"] = {"every": harness.every, **describe_task(identity)}
    return told
