"""What decides the outcome of a fine-tuning run."""

from typing import Any

from trainer.config.finetuning import FinetuneJob
from trainer.metrics.measures import metric_identity
from trainer.runs.run import Run, one_spelling
from trainer.runs.tuning import identify_tuning
from trainer.store.manifest import ArtifactRef


def identify(job: FinetuneJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded set make."""
    settings = {name: getattr(job.training, name) for name in ("class_weights", "label_smoothing")}
    # Without them runs are named as before there were any.
    beside = {name: one_spelling(said) for name, said in settings.items() if said}
    return identify_tuning(job, data, beside, _measurement(job))


def _measurement(job: FinetuneJob) -> dict[str, Any]:
    """The evaluation's settings, with the contents of metric files in place of their paths."""
    settings = job.evaluation.model_dump()
    if job.evaluation.metrics:
        settings["metrics"] = [metric_identity(name) for name in job.evaluation.metrics]
    return settings
