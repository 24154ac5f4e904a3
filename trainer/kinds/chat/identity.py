"""What decides the outcome of a run on conversations."""

from trainer.config.chat import ChatJob
from trainer.data.packing import FORMAT as PACKING
from trainer.kinds.tuning import identify_tuning
from trainer.store.manifest import ArtifactRef
from trainer.training.identity import Run


def identify(job: ChatJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded conversations make."""
    return identify_tuning(job, data, {"packing": PACKING if job.data.packing else None}, {})
