"""Crashed flow runs, scheduled again as long as they get further: the flow of the deployment `watchdog/watchdog`.

A crash (the flow's process killed, its machine gone) is no failure, so Prefect's own retries do not apply. The
automation of deployments/automations.yaml marks runs crashed that have fallen silent, and every crash starts this flow.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.runtime import deployment
from prefect.states import Scheduled
from pydantic import TypeAdapter

from tasks.credentials import use_credentials
from tasks.patience import RetriesExhausted, patient
from trainer.common.errors import RunError
from trainer.common.transient import AT_THE_START
from trainer.config.files import override
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.labelled import PredictJob
from trainer.kinds.kind import TunedJob
from trainer.training.job_progress import Standing, WatchedJob, find_standing, is_alive

DEATHS, FILES, STEP, START = "headrace.deaths", "headrace.files", "headrace.step", "headrace.start"
"""Labels of a flow run: how often it died without getting further, where that was, and the start that its last death
ended.
"""

JOBS: dict[str, Any] = {
    "data-to-model": PipelineJob,
    "train-model": PipelineJob,
    "prepare-data": PrepareJob,
    "finetune": TunedJob,
    "evaluate-model": EvaluateJob,
    "predict": PredictJob,
}
"""The flows that may be started again, as what they have finished is found, with the type of their job."""

SOON, LATE = timedelta(seconds=30), timedelta(hours=1)
"""The shortest and the longest wait before another look at a run whose process lives on."""

CLAIMED_EARLY, SETTLED, AT_MOST = timedelta(seconds=10), timedelta(seconds=15), timedelta(minutes=1)
"""How much earlier a worker claims a run than it is due; and how much later a run is started again, at least and at
most. A worker tells of the end of its process once more, when another process has looked for hooks of the flow: if the
new start was claimed before that, it would count as a second death. That process began before the watchdog's own, and
loads the same: the longer that has taken, the longer it is waited for.
"""

REST = timedelta(minutes=10)
"""How much later a run is started for each time that it has died without getting further: a full disk, say, may pass.
"""


@flow(name="watchdog", log_prints=True)
def watchdog(flow_run: UUID | None = None, deaths: int = 3) -> list[UUID]:
    """Schedule crashed flow runs again: one, or all that are crashed; returns those that were scheduled.

    A run that has died `deaths` times without getting further between is left crashed. Raises `RunError` that names
    those, and those that could not be looked at, so that this flow fails where people look.
    """
    with get_client(sync_client=True) as client:
        runs = [flow_run] if flow_run is not None else [run.id for run in _crashed(client)]
    found = {run: _looked(run, deaths) for run in runs}
    problems = [f"flow run {run}: {error}" for run, error in found.items() if isinstance(error, Exception)]
    if problems:
        raise RunError("; ".join(problems))
    return [run for run, scheduled in found.items() if scheduled]


@task(
    name="look",
    cache_policy=NO_CACHE,
    retries=3,
    retry_delay_seconds=[10, 60, 180],
    retry_condition_fn=lambda _task, _run, state: not isinstance(state.data, RunError),  # what is given up stays so
)
@patient(AT_THE_START)
def look(flow_run: UUID, deaths: int) -> bool:
    """Schedule a flow run again if it is crashed, and its process gone; returns whether that was done.

    Raises `RunError` if it has died too often, the first time that this is found. What is done by halves can be done
    again.
    """
    use_credentials()
    with get_client(sync_client=True) as client:
        run = next(iter(_crashed(client, flow_run)), None)
        if run is None:
            return False
        job = _job_of(client, run)
        if job is None:
            get_run_logger().info("%s is crashed, and of a flow that is not started again by itself", run.name)
            return False
        if is_alive(job):
            _look_again(client, run, deaths, "its process lives")
            return False
        labels, start = run.labels, _last_start(client, run)
        known = labels.get(START) == start
        if not known:
            labels = {**count_deaths(labels, find_standing(job)), START: start}
            client.update_flow_run_labels(run.id, labels)
        place = f"step {labels[STEP]}, {labels[FILES]} files"
        if int(labels[DEATHS]) < deaths:
            due = datetime.now(UTC) + max(settling(run), REST * (int(labels[DEATHS]) - 1))
            get_run_logger().info("%s crashed at %s: scheduled again for %s", run.name, place, f"{due:%H:%M:%S} UTC")
            again: State[Any] = Scheduled(scheduled_time=due, message=f"It crashed at {place}: to be continued")
            client.set_flow_run_state(run.id, again, force=True)
            return True
        if not known:
            raise RunError(
                f"{run.name} died {labels[DEATHS]} times at {place}: not scheduled again. Find the cause in its logs, "
                f"then `prefect flow-run retry {run.id}`"
            )
    return False


def settling(run: FlowRun) -> timedelta:
    """How much later than now a crashed run is to be started again."""
    taken = datetime.now(UTC) - run.state.timestamp if run.state else timedelta()
    return min(max(SETTLED, CLAIMED_EARLY + taken / 2), AT_MOST)


def _looked(flow_run: UUID, deaths: int) -> bool | Exception:
    """What a look came to, or its error; a run whose store is away is looked at again later."""
    try:
        return look(flow_run, deaths, return_state=True).result(raise_on_failure=False)
    except RetriesExhausted as error:
        with get_client(sync_client=True) as client:
            for run in _crashed(client, flow_run):
                _look_again(client, run, deaths, "its store is away")
        return RunError(str(error))


def _last_start(client: SyncPrefectClient, run: FlowRun) -> str:
    """What tells a death from any other, however often and by whomever it is told: the start before it.

    Not `run_count`, which a process that dies before it has loaded its flow does not raise.
    """
    starts = [
        each for each in client.read_flow_run_states(run.id) if each.type in (StateType.PENDING, StateType.RUNNING)
    ]
    return str(starts[-1].id) if starts else ""


def _look_again(client: SyncPrefectClient, run: FlowRun, deaths: int, why: str) -> None:
    """Schedule another look at a run whose process lives on, or whose store is away: nobody tells of the end of that.

    Each wait is as long as the run has been crashed by then, within bounds.
    """
    lives = f"{run.name} is crashed, but {why}"
    if deployment.id is None:
        get_run_logger().warning("%s: run this again when that has ended", lives)
        return
    get_run_logger().warning("%s: to be looked at again", lives)
    now = datetime.now(UTC)
    crashed = now - run.state.timestamp if run.state else timedelta()
    due = now + min(max(crashed, SOON), LATE)
    parameters = {"flow_run": str(run.id), "deaths": deaths}
    client.create_flow_run_from_deployment(
        UUID(deployment.id), parameters=parameters, state=Scheduled(scheduled_time=due)
    )


def count_deaths(labels: Mapping[str, Any], now: Standing) -> dict[str, Any]:
    """The labels of a run that died at a place, given its labels from the time before."""
    before = Standing(int(labels.get(FILES, 0)), int(labels.get(STEP, 0)))
    further = DEATHS not in labels or now.is_beyond(before)
    return {DEATHS: 1 if further else int(labels[DEATHS]) + 1, FILES: now.files, STEP: now.step}


def _crashed(client: SyncPrefectClient, flow_run: UUID | None = None) -> list[FlowRun]:
    """Crashed runs of deployments; a run without one has nobody who could start it again."""
    wanted: dict[str, Any] = {"state": {"type": {"any_": [StateType.CRASHED]}}, "deployment_id": {"is_null_": False}}
    if flow_run is not None:
        wanted["id"] = {"any_": [flow_run]}
    which = TypeAdapter(FlowRunFilter).validate_python(wanted)
    found: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=which, offset=len(found)):
        found += page
    return found


def _job_of(client: SyncPrefectClient, run: FlowRun) -> WatchedJob | None:
    schema = JOBS.get(client.read_flow(run.flow_id).name)
    if schema is None or "job" not in run.parameters:
        return None
    job: WatchedJob = TypeAdapter(schema).validate_python(run.parameters["job"])
    return override(job, run.parameters.get("set", ()))
