"""The look at an instruction-tuning job before long work starts."""

from typing import Any

from trainer.common.progress import Progress
from trainer.config.chat import CHAT_FIGURES, ChatJob
from trainer.kinds.conversations_preflight import look_at_conversations
from trainer.preflight.harness import try_harness
from trainer.records.results import TuningPreflight


def chat_preflight(job: ChatJob, progress: Progress) -> TuningPreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of whatever is wrong."""

    def check(config: Any, tokenizer: Any) -> None:
        try_harness(job.evaluation.harness, job.promotion, config, tokenizer)

    return look_at_conversations(job, progress, list(CHAT_FIGURES), check=check)
