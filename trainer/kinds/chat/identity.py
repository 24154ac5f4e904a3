"""What decides the outcome of a run on conversations, and its plan."""

from trainer.config.chat import ChatJob
from trainer.data.packing import FORMAT as PACKING
from trainer.kinds.kind import Planned
from trainer.kinds.tuning import SPLITS, identify_tuning, split_rows
from trainer.store.manifest import ArtifactRef
from trainer.training.identity import Run


def identify(job: ChatJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded conversations make."""
    return identify_tuning(job, data, {"packing": PACKING if job.data.packing else None}, {})


def plan(job: ChatJob, data: ArtifactRef, ranks: int) -> Planned:
    """The plan of a run on packed windows."""
    from trainer.data.chat.encoded import plan_chat

    planned, found = plan_chat(job, data.key, ranks)
    told = f"windows of {found.details['context']} tokens, {planned.fill or 0:.1%} full"
    return Planned(planned, told, SPLITS, split_rows(found.details))
