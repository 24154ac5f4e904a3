"""The look at a preference-tuning job before long work starts."""

from typing import Any

from trainer.common.progress import Progress
from trainer.kinds.conversations_preflight import look_at_conversations
from trainer.kinds.preference.job import PREFERENCE_FIGURES, PreferenceJob
from trainer.kinds.preference.pairs import PAIR
from trainer.preflight.harness import try_harness
from trainer.records.results import TuningPreflight


def preference_preflight(job: PreferenceJob, progress: Progress) -> TuningPreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of whatever is wrong."""

    def check(config: Any, tokenizer: Any) -> None:
        try_harness(job.evaluation.harness, job.promotion, config, tokenizer)

    return look_at_conversations(job, progress, list(PREFERENCE_FIGURES), PAIR, check, rows=2)
