"""What lm-eval measures of a language model, beside its evaluation, in a process that runs all stages."""

from typing import TypeVar

from trainer.common.loading import loading
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.records.evaluations import ChatEvaluation, Evaluation

Measured = TypeVar("Measured", Evaluation, ChatEvaluation)


def beside_harness(measuring: EvaluateJob, found: Measured, own: bool, progress: Progress) -> Measured:
    """An evaluation with what lm-eval measures of the same model; the first rank does that, and the others wait."""
    with loading():
        from trainer.harness.measuring import measure_harness
        from trainer.training.runtime import start_runtime

    runtime = start_runtime(measuring.precision, measuring.device)
    return found.beside(runtime.on_first(lambda: measure_harness(measuring, own, progress)))
