"""The task that trains: the trainer in processes of its own, one rank a device, continued on every retry."""

from tasks.patience import patient_task
from tasks.showing import TaskLogger, name_flow_run, reused, showing
from tasks.stage import run_stage
from tasks.turns import DEVICES, turn
from trainer.config.runs import RunJob
from trainer.kinds.lookup import identify_run
from trainer.records.plans import Plan
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, finished_run, is_whole


@patient_task("train", retries=3)
def train(job: RunJob, data: TrainingData, plan: Plan) -> ArtifactRef:
    """Train the run, from its newest checkpoint if it has one, unless its final model is published and intact."""
    logger = TaskLogger()
    store, run = Store(job.store), identify_run(job, data)
    name_flow_run(run.key.removeprefix("runs/"))
    finished = finished_run(store, run)
    if finished is not None and is_whole(store, run, job, data):
        logger.info("reused %s: its final model is intact, made from the same data and settings", finished.key)
        return reused(finished, f"{finished.key} is finished")
    arguments = {
        "job": job.model_dump(mode="json"),
        "data": data.model_dump(mode="json"),
        "expected": plan.model_dump(mode="json"),
    }
    with turn(DEVICES), showing() as show:
        made = ArtifactRef(**run_stage("train", arguments, show, logger, plan.ranks, job.engine, job.training.device))
    return reused(made, f"{made.key} is finished; its records were seen to") if made.reused else made
