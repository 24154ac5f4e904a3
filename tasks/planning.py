"""Tasks before the training: the preflight and the step plan."""

from prefect.artifacts import create_table_artifact
from pydantic import TypeAdapter

from tasks.patience import patient_task
from tasks.showing import TaskLogger, showing
from tasks.stage import run_stage
from trainer.common.transient import AT_THE_START
from trainer.config.runs import RunJob
from trainer.kinds.kind import kind_of
from trainer.pipelines.pipeline import find_finished_job
from trainer.records.plans import RunPlan
from trainer.records.results import AnyPreflight, Finished
from trainer.store.storage import Store
from trainer.training.identity import TrainingData


@patient_task("preflight", retries=0, most=AT_THE_START)
def preflight(job: RunJob) -> AnyPreflight | Finished:
    """Check inputs, store, devices and model before any long work; skip the checks if the run is finished."""
    if (finished := find_finished_job(job)) is not None:
        Store(job.store).sweep()  # as a preflight does: an earlier start may have been killed in its last stages
        TaskLogger().info("preflight: %s", finished.describe())
        return finished
    with showing() as show:
        made = run_stage("preflight", {"job": job.model_dump(mode="json")}, show, TaskLogger())
    found: AnyPreflight = TypeAdapter(AnyPreflight).validate_python(made)
    TaskLogger().info("preflight: %s", found.describe())
    for name, value in found.data_rows():
        TaskLogger().info("%s: %s", name, value)
    return found


@patient_task("plan-steps", retries=0)
def plan_steps(job: RunJob, data: TrainingData, ranks: int) -> RunPlan:
    """Compute the step plan from the sizes of the prepared data, and show it."""
    plan, description, table, rows = kind_of(job).plan(job, data, ranks)
    steps = [{"figure": name, "value": value} for name, value in plan.figures().items()]
    create_table_artifact(rows, key=table, description=description)
    create_table_artifact(steps, key="step-plan", description=f"{plan.total_steps:,} optimizer steps")
    TaskLogger().info("plan: %s", plan.describe_steps())
    return plan
