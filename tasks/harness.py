"""The task in which lm-eval measures a model."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import TaskLogger, reused, showing, worth_retrying
from tasks.stage import run_stage
from tasks.turns import DEVICES, turn
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.harness_cache import find_harness, identify_harness
from trainer.records.basis import HarnessResult
from trainer.store.storage import Store


@task(name="harness", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def measure_harness(job: EvaluateJob, own: bool) -> HarnessResult:
    """Have lm-eval measure a checkpoint on this machine; `own`: it is the final model of the run that the job trained."""
    logger, store = TaskLogger(), Store(job.store)
    result = find_harness(store, identify_harness(store, job, own))
    if result is None:
        with turn(DEVICES), showing() as show:
            made = run_stage("harness", {"job": job.model_dump(mode="json"), "own": own}, show, logger)
        result = HarnessResult(**made)
    create_table_artifact(result.rows(), key="harness", description=f"{job.checkpoint}: {result.describe()}")
    logger.info("%s", result.describe())
    if result.reused:
        return reused(result, f"{result.key} is of this checkpoint and these tasks")
    return result
