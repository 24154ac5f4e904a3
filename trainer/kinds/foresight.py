"""What a command would do with a job of any kind, and why."""

from trainer.foresight import job as stages
from trainer.foresight.foreseen import Foreseen
from trainer.kinds.table import kind_of
from trainer.training.identity import TrainingJob


def foresee(job: TrainingJob) -> list[Foreseen]:
    """Every stage of a job, in order. Raises the `PipelineError` of bad or missing input."""
    kind = kind_of(job)
    return stages.foresee(job, kind.prepare, kind.identify, kind.foresee_evaluation, kind.harness)
