"""What a process does for a job of any kind: train, and measure a model."""

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.kinds.table import kind_of
from trainer.records.basis import HarnessResult
from trainer.records.evaluations import RunEvaluation
from trainer.records.plans import RunPlan
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training import run
from trainer.training.identity import TrainingData, TrainingJob


def train(
    job: TrainingJob, progress: Progress, data: TrainingData | None = None, expected: RunPlan | None = None
) -> ArtifactRef:
    """Train to the end and publish the final model: `trainer.training.run.train` for a job of any kind."""
    return run.train(job, kind_of(job), progress, data, expected)


def ask_harness(job: EvaluateJob, own: bool, progress: Progress) -> HarnessResult:
    """What lm-eval measures of a checkpoint; the first rank asks, and the others wait."""
    with loading():
        from trainer.evaluation.harness import measure_harness
        from trainer.training.runtime import start_runtime

    runtime = start_runtime(job.precision, job.device)
    return runtime.on_first(lambda: measure_harness(job, own, progress))


def evaluate_any(job: EvaluateJob, progress: Progress) -> RunEvaluation:
    """Score a checkpoint of any kind: of a fine-tuned run on its labelled splits, else as `evaluate_checkpoint`
    does.
    """
    from trainer.kinds.labelled.checkpoint_scoring import identify_checkpoint

    store = Store(job.store)
    scoring = identify_checkpoint(store, job)
    if scoring is None:
        from trainer.kinds.pretraining.evaluate import evaluate_checkpoint

        return evaluate_checkpoint(job, progress)
    from trainer.kinds.labelled.evaluate import score_checkpoint  # which needs scikit-learn, as language models do not

    return score_checkpoint(store, job, scoring, progress)
