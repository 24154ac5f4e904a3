"""The tasks that measure a checkpoint, and a fine-tuned run."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import TaskLogger, reused, showing, worth_retrying
from tasks.stage import run_stage
from tasks.turns import DEVICES, turn
from trainer.config.finetuning import FinetuneJob
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.checkpoint_scoring import identify_checkpoint
from trainer.evaluation.measured import find_evaluation, find_scoring, identify_evaluation, require_scoring
from trainer.records.evaluations import Evaluation, FinetuneEvaluation
from trainer.records.kinds import evaluation_type
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@task(name="evaluate", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def evaluate(job: EvaluateJob, ranks: int = 1) -> Evaluation | FinetuneEvaluation:
    """Score a checkpoint: a language model by corpus and in total, with continuations of prompts, a classifier by split."""
    logger, store = TaskLogger(), Store(job.store)
    scoring = identify_checkpoint(store, job)
    result: Evaluation | FinetuneEvaluation | None
    result = find_scoring(store, scoring.wanted) if scoring else find_evaluation(store, identify_evaluation(store, job))
    if result is None:
        with turn(DEVICES), showing() as show:
            made = run_stage("evaluate", {"job": job.model_dump(mode="json")}, show, logger, ranks, job.engine, job.device)
        result = evaluation_type(made)(**made)
    create_table_artifact(result.rows(), key="evaluation", description=f"{job.checkpoint}: {result.describe()}")
    logger.info("%s", result.describe())
    if result.reused:
        return reused(result, f"{result.key} is of this checkpoint and these settings")
    return result


@task(name="evaluate", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def evaluate_run(job: FinetuneJob, data: ArtifactRef, run_key: str, ranks: int, other: str | None = None) -> FinetuneEvaluation:
    """Score a run's final model on the labelled splits, and write its predictions; or score that of another run on them."""
    logger, store = TaskLogger(), Store(job.store)
    result = find_scoring(store, require_scoring(store, job, run_key, other, data.key))
    if result is None:
        arguments = {"job": job.model_dump(mode="json"), "run_key": run_key, "other": other, "encoded": data.key}
        with turn(DEVICES), showing() as show:
            result = FinetuneEvaluation(
                **run_stage("evaluate-run", arguments, show, logger, ranks, job.engine, job.training.device)
            )
    create_table_artifact(result.rows(), key="evaluation", description=other or run_key)
    if result.reused:
        logger.info("reused %s", result.key)
        return reused(result, f"{result.key} is of the same model and data")
    return result
