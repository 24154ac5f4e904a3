"""What decides the outcome of a fine-tuning run, and its plan."""

from typing import Any

from trainer.config.labelled import FinetuneJob
from trainer.evaluation.metrics import OF_ONE_CLASS, greater_is_better, metric_identity, of_one_class
from trainer.kinds.kind import Planned
from trainer.kinds.tuning import identify_tuning, plan_splits
from trainer.store.manifest import ArtifactRef
from trainer.training.identity import Run


def identify(job: FinetuneJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded set make."""
    return identify_tuning(job, data, {}, _selection(job))


def plan(job: FinetuneJob, data: ArtifactRef, ranks: int) -> Planned:
    """The plan of a run on labelled examples."""
    from trainer.data.labelled.encoding import describe_columns

    return plan_splits(job, data, ranks, describe_columns)


def _selection(job: FinetuneJob) -> dict[str, Any]:
    """What decides which checkpoint is best: the figure, and the metrics that may give it; a file of one by its
    content.
    """
    settings = job.evaluation
    figure = settings.best_by
    selection: dict[str, Any] = {
        "best_by": figure,
        "greater_is_better": greater_is_better(figure, settings.greater_is_better),
    }
    if figure == "loss":
        return selection
    metrics = settings.metrics
    if metrics is not None:  # a figure that is named like one of them is that one's, whatever the others give
        selection["metrics"] = [metric_identity(name) for name in ([figure] if figure in metrics else metrics)]
    if figure in of_one_class(list(OF_ONE_CLASS) if metrics is None else metrics):
        selection["positive_class"] = settings.positive_class
    return selection
