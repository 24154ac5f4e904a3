"""What lm-eval measures of a language model, in a process that runs all stages."""

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.records.basis import HarnessResult


def ask_harness(measuring: EvaluateJob, own: bool, progress: Progress) -> HarnessResult:
    """What lm-eval measures of a checkpoint; the first rank asks, and the others wait."""
    with loading():
        from trainer.evaluation.harness import measure_harness
        from trainer.training.runtime import start_runtime

    runtime = start_runtime(measuring.precision, measuring.device)
    return runtime.on_first(lambda: measure_harness(measuring, own, progress))
