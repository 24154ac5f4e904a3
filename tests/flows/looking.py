"""What a flow run left on the server and in the store."""

from pathlib import Path
from typing import Any

from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import Artifact, TaskRun


def task_runs(state: State[Any]) -> dict[str, TaskRun]:
    """The task runs of a flow run, by name without their random ending."""
    flow_run = state.state_details.flow_run_id
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
    named = sorted(runs, key=lambda run: run.start_time or run.created)
    return {run.name if run.name.startswith("tokenize-") else run.name.rsplit("-", 1)[0]: run for run in named}


def artifacts(state: State[Any]) -> list[Artifact]:
    flow_run = state.state_details.flow_run_id
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        found: list[Artifact] = client.read_artifacts(artifact_filter=wanted)
        return found


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every file."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
