"""The task that trains: it runs the trainer in separate processes, one rank per device, and resumes on every retry."""

from collections.abc import Callable
from typing import Any

from tasks.patience import patient_task
from tasks.showing import TaskLogger, name_flow_run, reused, showing
from tasks.stage import Logger, StageCrashed, run_stage
from tasks.turns import DEVICES, turn
from trainer.common.errors import Preempted
from trainer.common.stopping import stop_requested
from trainer.config.runs import RunJob
from trainer.kinds.kind import identify_run
from trainer.records.plans import Plan
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, finished_run, is_whole
from trainer.training.job_progress import last_step


@patient_task("train", retries=3)
def train(job: RunJob, data: TrainingData, plan: Plan) -> ArtifactRef:
    """Train or resume the run, unless its final model is published and intact."""
    logger = TaskLogger()
    store, run = Store(job.store), identify_run(job, data)
    name_flow_run(run.key.removeprefix("runs/"))
    finished = finished_run(store, run)
    if finished is not None and is_whole(store, run, job, data):
        logger.info("reused %s: its final model is intact, with the same data and settings", finished.key)
        return reused(finished, f"{finished.key} is finished")
    arguments = {
        "job": job.model_dump(mode="json"),
        "data": data.model_dump(mode="json"),
        "expected": plan.model_dump(mode="json"),
    }
    with turn(DEVICES), showing() as show:

        def go_on() -> dict[str, Any]:
            return run_stage("train", arguments, show, logger, plan.ranks, job.engine, job.training.device)

        made = ArtifactRef(**go_on_while_it_advances(go_on, store, run.key, logger))
    return reused(made, f"{made.key} is finished; its records were repaired") if made.reused else made


def go_on_while_it_advances(
    attempt: Callable[[], dict[str, Any]], store: Store, run: str, logger: Logger
) -> dict[str, Any]:
    """Retry training immediately after a crash, or if only the stage was stopped, while each attempt saves a later
    step; return the result.

    Raises the error of the first attempt without a later step, which Prefect's retries of the task handle. Repairing a
    damaged `checkpoint-last` counts as a later step.
    """
    reached = 0
    while True:
        reached = max(reached, last_step(store, run))
        try:
            return attempt()
        except (StageCrashed, Preempted) as ended:
            saved = last_step(store, run)
            if stop_requested() or saved <= reached:
                raise
            logger.warning("%s; progressed from step %d to %d, resuming from there", ended, reached, saved)
