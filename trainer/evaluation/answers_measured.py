"""What was measured already of a model that answers; free of heavy imports."""

from functools import partial

from trainer.config.chat import ChatJob
from trainer.evaluation.measured import Scoring, find_alike, locate_scoring
from trainer.models.pretrained import Checkpoint
from trainer.records.evaluations import ChatEvaluation
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

FORMAT = 2


def identify_answers(store: Store, job: ChatJob, run: str, other: str | None = None, encoded: str | None = None) -> Scoring:
    """The measurement of a run's final model, made already or not, or of that of an `other` run on this one's data.

    Raises as `identify_scoring` does.
    """
    return locate_scoring(store, run, other, encoded, partial(_fingerprint, as_measured(job, other)))


def as_measured(job: ChatJob, other: str | None) -> ChatJob:
    """How a job measures a model: one of an `other` run, which it did not try, with each conversation in a window of its own.

    Families that carry a state on, or know no positions, would read those that share a window otherwise.
    """
    return job if other is None else job.model_copy(update={"data": job.data.model_copy(update={"packing": False})})


def find_answers(store: Store, wanted: Scoring) -> ChatEvaluation | None:
    """The measurement already made of the same."""
    return find_alike(store, wanted, ChatEvaluation)


def _fingerprint(job: ChatJob, found: Checkpoint, encoded: str) -> str:
    """What names the figures and the answers of a model on an encoded set."""
    asked = job.evaluation.model_dump(exclude={"batch", "harness"})
    return fingerprint([FORMAT, found.files, encoded, job.training.precision, job.data.packing, asked])
