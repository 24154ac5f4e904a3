"""Tasks that evaluate models, directly or with lm-eval, and that predict new texts."""

from typing import Any

from prefect.artifacts import create_table_artifact

from tasks.data import show_skipped
from tasks.patience import patient_task
from tasks.showing import TaskLogger, reused, showing
from tasks.stage import run_stage
from tasks.turns import DEVICES, turn
from trainer.common.display import plural
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import PredictJob
from trainer.config.runs import RunJob
from trainer.config.schema import Schema
from trainer.evaluation.harness_identity import identify_harness
from trainer.evaluation.measurement import check_asked, find_result
from trainer.kinds.kind import identify_checkpoint, kind_of
from trainer.kinds.labelled.predictions import describe, find_predictions, identify_predictions, predictions_step
from trainer.records.evaluations import Result
from trainer.records.results import PredictedTexts
from trainer.store.storage import Store


@patient_task("evaluate")
def evaluate(job: EvaluateJob) -> Result:
    """Score a checkpoint: a language model by corpus and in total, with samples; a classifier by split."""
    result = find_result(Store(job.store), identify_checkpoint(Store(job.store), job)[1])
    if result is None:
        result = Result(**_compute("evaluate", job, {}, job.processes, job.engine, job.device))
    return _shown(result, "evaluation")


@patient_task("evaluate")
def evaluate_run(job: RunJob, data: list[str], run: str, ranks: int, other: str | None = None) -> Result:
    """Evaluate the final model of `run`, or of the run `other`, on the held-out data of `run`."""
    store = Store(job.store)
    measurement = kind_of(job).measurement(store, job, run, data, other)
    check_asked(store, measurement)
    result = find_result(store, measurement)
    if result is None:
        options = {"run": run, "data": data, "other": other}
        result = Result(**_compute("evaluate-run", job, options, ranks, job.engine, job.training.device))
    return _shown(result, "evaluation")


@patient_task("harness")
def measure_harness(job: EvaluateJob, own: bool) -> Result:
    """Evaluate a checkpoint with lm-eval on this machine; `own`: it is the final model of the job's own run."""
    store = Store(job.store)
    result = find_result(store, identify_harness(store, job, own))
    if result is None:
        result = Result(**_compute("harness", job, {"own": own}))
    return _shown(result, "harness")


def _compute(stage: str, job: Schema, options: dict[str, Any], *ranks: Any) -> dict[str, Any]:
    """Wait for a turn and run a stage on the machine's devices; `ranks` are its count of ranks, engine and device."""
    with turn(DEVICES), showing() as show:
        return run_stage(stage, {"job": job.model_dump(mode="json"), **options}, show, TaskLogger(), *ranks)


def _shown(result: Result, table: str) -> Result:
    """Create a table of a checkpoint's figures and log them; return the task's result, marked if it was reused."""
    create_table_artifact(result.rows(), key=table, description=f"{result.checkpoint}: {result.describe()}")
    TaskLogger().info("%s", result.describe())
    return reused(result, f"{result.key}: same model and settings") if result.reused else result


@patient_task("predict")
def predict_texts(job: PredictJob) -> PredictedTexts:
    """Predict each text, unless the predictions are published and intact."""
    store = Store(job.store)
    made = find_predictions(predictions_step(store, job, identify_predictions(store, job)))
    if made is None:
        made = PredictedTexts(**_compute("predict", job, {}, job.processes))
    create_table_artifact(
        [{"predicted": name, "value": value} for name, value in made.predicted.items()],
        key="predictions",
        description=f"{made.key}: {plural(made.texts, 'text')}, by {made.model}",
    )
    show_skipped({"splits": {job.name: made.model_dump()}})
    TaskLogger().info("%s", describe(store, made))
    return reused(made, f"{made.key}: same model and texts") if made.reused else made
