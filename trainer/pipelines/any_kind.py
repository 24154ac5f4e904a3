"""Stage functions for jobs of any kind: preflight, training and evaluation."""

import logging

from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.harness_identity import identify_harness
from trainer.evaluation.measurement import evaluate
from trainer.kinds.kind import AnyJob, LazyFunction, identify_checkpoint, kind_of
from trainer.records.evaluations import Result
from trainer.records.plans import RunPlan
from trainer.records.results import AnyPreflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training import run
from trainer.training.identity import TrainingData

log = logging.getLogger(__name__)


def train(
    job: AnyJob, progress: Progress, data: TrainingData | None = None, expected: RunPlan | None = None
) -> ArtifactRef:
    """Train to the end and publish the final model: `trainer.training.run.train` for a job of any kind."""
    return run.train(job, kind_of(job), progress, data, expected)


def preflight(job: AnyJob, progress: Progress) -> AnyPreflight:
    """Check the job before long work starts, and log its warnings; raise a `PipelineError` if something is wrong."""
    found: AnyPreflight = kind_of(job).preflight(job, progress)
    for warning in found.warnings:
        log.warning("%s", warning)
    return found


def evaluate_run(
    job: AnyJob, run: str, progress: Progress, data: list[str] | None = None, other: str | None = None
) -> Result:
    """Evaluate the final model of a job's run, or of an `other` run, on the held-out part of the data of these keys."""
    store, kind = Store(job.store), kind_of(job)
    return evaluate(store, kind.measurement(store, job, run, data, other), kind.measure, progress)


def evaluate_checkpoint(job: EvaluateJob, progress: Progress) -> Result:
    """Evaluate any checkpoint: of a fine-tuned run on labelled examples, of a language model on held-out text."""
    store = Store(job.store)
    kind, measurement = identify_checkpoint(store, job)
    return evaluate(store, measurement, kind.measure, progress)


def evaluate_harness(job: EvaluateJob, own: bool, progress: Progress) -> Result:
    """Evaluate a checkpoint with lm-eval; `own`: it is the final model of the run that the job trained."""
    store = Store(job.store)
    measure = LazyFunction("trainer.evaluation.harness.measure_harness")
    return evaluate(store, identify_harness(store, job, own), measure, progress)
