"""Reschedule crashed flow runs as long as they make progress: the flow of the deployment `watchdog/watchdog`.

A crash (the flow's process was killed, its machine is gone) is not a failure, so Prefect's retries do not apply. The
automations in deployments/automations.yaml mark runs without heartbeats, and those that do not start, as crashed; each
crash starts this flow.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.runtime import deployment
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Scheduled
from pydantic import TypeAdapter

from tasks.credentials import use_credentials
from tasks.patience import RetriesExhausted, patient
from tasks.turns import TURN
from trainer.common.errors import RunError
from trainer.common.transient import AT_THE_START
from trainer.config.files import override
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.labelled import PredictJob
from trainer.kinds.kind import TunedJob
from trainer.training.job_progress import Standing, WatchedJob, find_standing, is_alive

DEATHS, FILES, STEP, START = "headrace.deaths", "headrace.files", "headrace.step", "headrace.start"
"""Labels of a flow run: its deaths without progress, the files and step reached, and the start before the last death.
"""

JOBS: dict[str, Any] = {
    "data-to-model": PipelineJob,
    "train-model": PipelineJob,
    "prepare-data": PrepareJob,
    "finetune": TunedJob,
    "evaluate-model": EvaluateJob,
    "predict": PredictJob,
}
"""The flows that may be restarted, because they find their finished work in the store; with the type of their job."""

SOON, LATE = timedelta(seconds=30), timedelta(hours=1)
"""The shortest and longest waits before checking again a run whose process is still alive."""

SETTLED, AT_MOST = timedelta(seconds=2), timedelta(minutes=1)
"""The shortest delay until a worker claims a crashed run again, and the longest delay of its restart.

A worker reports the end of a run's process a second time, after it has looked for the flow's hooks. If the new start
were claimed before that report, the report would count as a second death. Looking for hooks begins before the watchdog
and loads the same modules, so the delay grows with the time that the watchdog took.
"""

STARTS, CANCELS = (StateType.PENDING, StateType.RUNNING), (StateType.CANCELLING, StateType.CANCELLED)
"""The types of states that a start sets, and a cancel."""

ENDED = ("Process exited", "Flow run infrastructure exited")
"""How the messages of a worker begin that has seen a run's process end."""

REST = timedelta(minutes=10)
"""Additional delay for each repeated death without progress, to let problems such as a full disk pass."""


@flow(name="watchdog", log_prints=True)
def watchdog(flow_run: UUID | None = None, deaths: int = 3) -> list[UUID]:
    """Reschedule one crashed flow run, or all; return those that were rescheduled.

    A run that has died `deaths` times without progress stays crashed. Raises `RunError` with those runs and with those
    that could not be checked, so that this flow is shown as failed.
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
    retry_condition_fn=lambda _task, _run, state: not isinstance(state.data, RunError),  # given up for good
)
@partial(patient, most=AT_THE_START)
def look(flow_run: UUID, deaths: int) -> bool:
    """Reschedule a flow run if it is crashed and its process is gone; return whether it was rescheduled.

    Raises `RunError` when it first finds that the run has died too often. An interrupted call can be repeated.
    """
    use_credentials()
    with get_client(sync_client=True) as client:
        run = next(iter(_crashed(client, flow_run)), None)
        if run is None:
            return False
        job = _job_of(client, run)
        if job is None:
            get_run_logger().info("%s crashed; its flow is not restarted automatically", run.name)
            return False
        if is_alive(job):
            _look_again(client, run, deaths, "its process is still alive")
            return False
        _end_turn(client, run)
        last = _last_wish(client, run)
        if last is not None and last.type in CANCELS:
            cancelled: State[Any] = Cancelled(message="Cancelled, then its process or worker ended; work is kept")
            client.set_flow_run_state(run.id, cancelled, force=True)
            get_run_logger().info("%s was cancelled before it crashed: not rescheduled", run.name)
            return False
        # A start identifies the death after it, however often that death is reported. `run_count` does not: a process
        # that dies before it has loaded its flow does not increase it.
        labels, start = run.labels, str(last.id) if last is not None else ""
        known = labels.get(START) == start
        if not known:
            labels = {**count_deaths(labels, find_standing(job)), START: start}
            client.update_flow_run_labels(run.id, labels)
        place = f"step {labels[STEP]}, {labels[FILES]} files"
        if int(labels[DEATHS]) < deaths:
            now = datetime.now(UTC)
            due = now + max(settling(run, now), REST * (int(labels[DEATHS]) - 1))
            get_run_logger().info("%s crashed at %s: rescheduled for %s", run.name, place, f"{due:%H:%M:%S} UTC")
            again: State[Any] = Scheduled(scheduled_time=due, message=f"Crashed at {place}; will continue")
            client.set_flow_run_state(run.id, again, force=True)
            return True
        if not known:
            raise RunError(
                f"{run.name} died {labels[DEATHS]} times at {place}: not rescheduled. Find the cause in its logs, then "
                f"run `prefect flow-run retry {run.id}`"
            )
    return False


def _end_turn(client: SyncPrefectClient, run: FlowRun) -> None:
    """Release the slot that a dead process holds, for which the new start would wait until it expires.

    A process that was only silent may be alive. If it is dead, its slot expires soon after the silence is noticed.
    """
    ended = run.state is not None and (run.state.message or "").startswith(ENDED)
    if ended and TURN in run.labels:
        with suppress(httpx.HTTPError):
            client.release_concurrency_slots_with_lease(UUID(str(run.labels[TURN])))


def settling(run: FlowRun, now: datetime) -> timedelta:
    """The delay from now until a crashed run is restarted; its worker claims it by `prefetch_seconds` earlier."""
    taken = now - run.state.timestamp if run.state else timedelta()
    claimed_early = timedelta(seconds=get_current_settings().worker.prefetch_seconds)
    return min(claimed_early + max(SETTLED, taken / 2), AT_MOST)


def _looked(flow_run: UUID, deaths: int) -> bool | Exception:
    """The result of `look`, or its error; schedules another check of a run whose store is unreachable."""
    try:
        return look(flow_run, deaths, return_state=True).result(raise_on_failure=False)
    except RetriesExhausted as error:
        with get_client(sync_client=True) as client:
            for run in _crashed(client, flow_run):
                _look_again(client, run, deaths, "its store cannot be reached")
        return RunError(str(error))


def _last_wish(client: SyncPrefectClient, run: FlowRun) -> State[Any] | None:
    """The state with which a run was last started or, after that, cancelled."""
    wishes = [each for each in client.read_flow_run_states(run.id) if each.type in STARTS or each.type in CANCELS]
    return wishes[-1] if wishes else None


def _look_again(client: SyncPrefectClient, run: FlowRun, deaths: int, why: str) -> None:
    """Schedule another check of a run whose process is alive or whose store is unreachable; no event reports a change.

    Each wait is as long as the run has been crashed so far, within bounds.
    """
    reason = f"{run.name} is marked as crashed, but {why}"
    if deployment.id is None:
        get_run_logger().warning("%s: run this again once that has changed", reason)
        return
    get_run_logger().warning("%s: will check again", reason)
    now = datetime.now(UTC)
    crashed = now - run.state.timestamp if run.state else timedelta()
    due = now + min(max(crashed, SOON), LATE)
    parameters = {"flow_run": str(run.id), "deaths": deaths}
    client.create_flow_run_from_deployment(
        UUID(deployment.id), parameters=parameters, state=Scheduled(scheduled_time=due)
    )


def count_deaths(labels: Mapping[str, Any], now: Standing) -> dict[str, Any]:
    """The labels of a run that died at the point `now`, given its previous labels."""
    before = Standing(int(labels.get(FILES, 0)), int(labels.get(STEP, 0)))
    further = DEATHS not in labels or now.is_beyond(before)
    return {DEATHS: 1 if further else int(labels[DEATHS]) + 1, FILES: now.files, STEP: now.step}


def _crashed(client: SyncPrefectClient, flow_run: UUID | None = None) -> list[FlowRun]:
    """Crashed runs of deployments; no worker could restart a run without a deployment."""
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
    if schema is None or not {"job"} <= run.parameters.keys() <= {"job", "set"}:  # it cannot start
        return None
    job: WatchedJob = TypeAdapter(schema).validate_python(run.parameters["job"])
    return override(job, run.parameters.get("set", ()))
