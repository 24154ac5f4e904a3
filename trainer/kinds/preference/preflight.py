"""Checks of a preference tuning job before long work starts."""

from trainer.common.progress import Progress
from trainer.data.chat.messages import PAIR
from trainer.kinds.preference.job import PreferenceJob
from trainer.kinds.preference.kind import check_fork
from trainer.kinds.tuning_preflight import look_at_conversations
from trainer.records.results import TuningPreflight
from trainer.store.storage import Store


def look_at_pairs(job: PreferenceJob, progress: Progress) -> TuningPreflight:
    """Check everything that can be checked before work starts; a sample is two rows. Raises the `PipelineError` of the
    first problem.
    """
    check_fork(Store(job.store), job)
    return look_at_conversations(job, progress, PAIR, rows=2)
