"""Crashed flow runs, scheduled again as long as they get further: the flow of the deployment `watchdog/local`.

A crash (the flow's process killed, its machine gone) is no failure, so Prefect's own retries do not apply. The automation of
deployments/automations.yaml marks runs crashed that have fallen silent, and every crash starts this flow.
"""

import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Scheduled
from pydantic import TypeAdapter

from tasks.credentials import use_credentials
from trainer.config import PipelineJob, PrepareJob
from trainer.errors import RunError
from trainer.finetune_config import FinetuneJob
from trainer.lease import BEAT_SECONDS, STALE_SECONDS
from trainer.standing import Standing, find_standing, is_alive

DEATHS, SHARD_FILES, STEP, STARTS = "headrace.deaths", "headrace.shard-files", "headrace.step", "headrace.starts"
"""Labels of a flow run: how often it died without getting further, where that was, and its starts until then."""

JOBS: dict[str, type[PipelineJob] | type[PrepareJob] | type[FinetuneJob]] = {
    "data-to-model": PipelineJob,
    "train-model": PipelineJob,
    "prepare-data": PrepareJob,
    "finetune": FinetuneJob,
}
"""The flows that continue where they stopped, with the type of their job."""


@flow(name="watchdog", log_prints=True)
def watchdog(flow_run: UUID | None = None, deaths: int = 3) -> list[UUID]:
    """Schedule crashed flow runs again: one, or all that are crashed; returns those that were scheduled.

    A run that has died `deaths` times without getting further between is left crashed. Raises `RunError` that names those, so
    that this flow fails where people look.
    """
    use_credentials()
    scheduled, hopeless = [], []
    with get_client(sync_client=True) as client:
        for run in _crashed(client, flow_run):
            job = _job_of(client, run)
            if job is None or _outlives(job):
                continue
            labels = run.labels
            known = labels.get(STARTS) == run.run_count  # a worker may report one death twice
            if not known:
                labels = {**count_deaths(labels, find_standing(job)), STARTS: run.run_count}
                client.update_flow_run_labels(run.id, labels)
            place = f"step {labels[STEP]}, {labels[SHARD_FILES]} shard files"
            if int(labels[DEATHS]) < deaths:
                get_run_logger().info("%s crashed at %s: scheduled again", run.name, place)
                client.set_flow_run_state(run.id, Scheduled(message=f"It crashed at {place}: to be continued"), force=True)
                scheduled.append(run.id)
            elif not known:
                hopeless.append(f"{run.name} ({run.id}) died {labels[DEATHS]} times at {place}")
    if hopeless:
        raise RunError(
            f"{'; '.join(hopeless)}: not scheduled again. Find the cause in its logs, then `prefect flow-run retry ID`"
        )
    return scheduled


def _outlives(job: PipelineJob | PrepareJob | FinetuneJob) -> bool:
    """Whether a process goes on training long after its flow run was called crashed; one that saves and ends is waited for."""
    end = time.monotonic() + STALE_SECONDS + BEAT_SECONDS
    while is_alive(job):
        if time.monotonic() > end:
            return True
        time.sleep(1)
    return False


def count_deaths(labels: Mapping[str, Any], now: Standing) -> dict[str, Any]:
    """The labels of a run that died at a place, given its labels from the time before."""
    before = Standing(int(labels.get(SHARD_FILES, 0)), int(labels.get(STEP, 0)))
    further = DEATHS not in labels or now.is_beyond(before)
    return {DEATHS: 1 if further else int(labels[DEATHS]) + 1, SHARD_FILES: now.shard_files, STEP: now.step}


def _crashed(client: SyncPrefectClient, flow_run: UUID | None) -> list[FlowRun]:
    """Crashed runs of deployments; a run without one has nobody who could start it again."""
    wanted: dict[str, Any] = {"state": {"type": {"any_": [StateType.CRASHED]}}, "deployment_id": {"is_null_": False}}
    if flow_run is not None:
        wanted["id"] = {"any_": [flow_run]}
    return client.read_flow_runs(flow_run_filter=TypeAdapter(FlowRunFilter).validate_python(wanted))


def _job_of(client: SyncPrefectClient, run: FlowRun) -> PipelineJob | PrepareJob | FinetuneJob | None:
    schema = JOBS.get(client.read_flow(run.flow_id).name)
    return schema(**run.parameters["job"]) if schema is not None and "job" in run.parameters else None
