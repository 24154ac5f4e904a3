"""A flow run's records on the server and in the store."""

from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import Artifact, TaskRun, TaskRunResult
from prefect.client.schemas.sorting import FlowRunSort

from tests.processes import wait_until


def latest_run(flow: str) -> UUID:
    """The newest run of a flow."""
    wanted = FlowFilter(name=FlowFilterName(any_=[flow]))
    with get_client(sync_client=True) as client:
        (found,) = client.read_flow_runs(flow_filter=wanted, sort=FlowRunSort.START_TIME_DESC, limit=1)
        return found.id


def task_runs(flow_run: UUID, last: str) -> dict[str, TaskRun]:
    """The task runs of a flow run in order, by name without the random suffix; `last` is the one that ends last.

    The server records them from events with a delay: later than the flow's end if its database is busy.
    """

    def told() -> bool:
        known = _known_task_runs(flow_run)
        return last in known and all(run.state is not None and run.state.is_final() for run in known.values())

    wait_until(told)
    return _known_task_runs(flow_run)


def task_states(flow_run: UUID, last: str) -> dict[str, str | None]:
    """The names of the states that these ended in."""
    return {name: run.state_name for name, run in task_runs(flow_run, last).items()}


def _known_task_runs(flow_run: UUID) -> dict[str, TaskRun]:
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
    in_order = sorted(runs, key=lambda run: run.start_time or run.created)
    return {run.name if run.name.startswith("tokenize-") else run.name.rsplit("-", 1)[0]: run for run in in_order}


def waited_for(runs: dict[str, TaskRun]) -> dict[str, set[str]]:
    """The tasks whose results each task took or waited for, by name: the arrows of the graph in the UI."""
    names = {str(run.id): name for name, run in runs.items()}
    return {
        name: {
            names[str(source.id)]
            for sources in run.task_inputs.values()
            for source in sources
            if isinstance(source, TaskRunResult)
        }
        for name, run in runs.items()
    }


def artifacts(flow_run: UUID) -> list[Artifact]:
    """All artifacts of a flow run on the server."""
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        found: list[Artifact] = client.read_artifacts(artifact_filter=wanted)
        return found


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and modification time of every file."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
