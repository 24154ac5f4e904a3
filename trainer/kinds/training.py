"""Training a job of any kind."""

from trainer.common.progress import Progress
from trainer.kinds.table import kind_of
from trainer.records.plans import RunPlan
from trainer.store.manifest import ArtifactRef
from trainer.training import run
from trainer.training.identity import TrainingData, TrainingJob


def train(
    job: TrainingJob, progress: Progress, data: TrainingData | None = None, expected: RunPlan | None = None
) -> ArtifactRef:
    """Train to the end and publish the final model: `trainer.training.run.train` for a job of any kind."""
    return run.train(job, kind_of(job), progress, data, expected)
