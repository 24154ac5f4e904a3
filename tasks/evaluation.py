"""The tasks that measure models, or let lm-eval measure them, and the one that predicts new texts."""

from typing import Any, TypeVar

from prefect.artifacts import create_table_artifact

from tasks.data import show_skipped
from tasks.patience import patient_task
from tasks.showing import TaskLogger, reused, showing
from tasks.stage import run_stage
from tasks.turns import DEVICES, turn
from trainer.config.chat import TunedJob
from trainer.config.jobs import EvaluateJob
from trainer.config.predicting import PredictJob
from trainer.evaluation.cache import find_evaluation, find_scoring, identify_evaluation
from trainer.evaluation.harness_cache import find_harness, identify_harness
from trainer.kinds.labelled.checkpoint_scoring import identify_checkpoint
from trainer.kinds.labelled.predictions import describe, find_predictions, identify_predictions, predictions_step
from trainer.kinds.table import kind_of, tuning_of
from trainer.kinds.tuning import TunedEvaluation
from trainer.records.basis import HarnessResult
from trainer.records.evaluations import RunEvaluation
from trainer.records.results import PredictedTexts
from trainer.records.run_kinds import evaluation_type
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

Figures = TypeVar("Figures", bound=RunEvaluation | HarnessResult)


@patient_task("evaluate")
def evaluate(job: EvaluateJob, ranks: int = 1) -> RunEvaluation:
    """Score a checkpoint: a language model by corpus and in total, with continuations of prompts, a classifier by
    split.
    """
    logger, store = TaskLogger(), Store(job.store)
    scoring = identify_checkpoint(store, job)
    result: RunEvaluation | None
    result = find_scoring(store, scoring.wanted) if scoring else find_evaluation(store, identify_evaluation(store, job))
    if result is None:
        with turn(DEVICES), showing() as show:
            made = run_stage(
                "evaluate", {"job": job.model_dump(mode="json")}, show, logger, ranks, job.engine, job.device
            )
        result = evaluation_type(made)(**made)
    return _told(result, job, "evaluation", "these settings")


@patient_task("evaluate")
def evaluate_run(
    job: TunedJob, data: ArtifactRef, run_key: str, ranks: int, other: str | None = None
) -> TunedEvaluation:
    """Measure a run's final model on what it was not trained on, as its kind is measured; or that of another run on
    it.
    """
    logger, store, tuning = TaskLogger(), Store(job.store), tuning_of(job)
    result = tuning.find(store, job, run_key, other, data.key)
    if result is None:
        arguments = {"job": job.model_dump(mode="json"), "run_key": run_key, "other": other, "encoded": data.key}
        with turn(DEVICES), showing() as show:
            made = run_stage(tuning.evaluate, arguments, show, logger, ranks, job.engine, job.training.device)
        shape: type[Any] = kind_of(job).recorded.evaluation
        result = shape(**made)
    create_table_artifact(result.rows(), key="evaluation", description=other or run_key)
    if result.reused:
        logger.info("reused %s", result.key)
        return reused(result, f"{result.key} is of the same model and data")
    return result


@patient_task("harness")
def measure_harness(job: EvaluateJob, own: bool) -> HarnessResult:
    """Have lm-eval measure a checkpoint on this machine; `own`: it is the final model of the run that the job
    trained.
    """
    logger, store = TaskLogger(), Store(job.store)
    result = find_harness(store, identify_harness(store, job, own))
    if result is None:
        with turn(DEVICES), showing() as show:
            made = run_stage("harness", {"job": job.model_dump(mode="json"), "own": own}, show, logger)
        result = HarnessResult(**made)
    return _told(result, job, "harness", "these tasks")


def _told(result: Figures, job: EvaluateJob, table: str, settings: str) -> Figures:
    """Show the figures of a checkpoint; returns them as the task's result, marked where they were there already."""
    create_table_artifact(result.rows(), key=table, description=f"{job.checkpoint}: {result.describe()}")
    TaskLogger().info("%s", result.describe())
    return reused(result, f"{result.key} is of this checkpoint and {settings}") if result.reused else result


@patient_task("predict")
def predict_texts(job: PredictJob) -> PredictedTexts:
    """Predict each text, unless that is published and intact."""
    logger, store = TaskLogger(), Store(job.store)
    made = find_predictions(predictions_step(store, job, identify_predictions(store, job)))
    if made is None:
        with turn(DEVICES), showing() as show:
            made = PredictedTexts(
                **run_stage("predict", {"job": job.model_dump(mode="json")}, show, logger, job.processes)
            )
    create_table_artifact(
        [{"predicted": name, "value": value} for name, value in made.predicted.items()],
        key="predictions",
        description=f"{made.key}: {made.texts:,} texts, by {made.model}",
    )
    show_skipped({"splits": {job.name: made.model_dump()}})
    logger.info("%s", describe(store, made))
    return reused(made, f"{made.key} is of the same model and texts") if made.reused else made
