"""The watchdog: what it schedules again, and what it gives up."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Crashed, Running

from flows.train_model import train_model
from flows.watchdog import DEATHS, SHARD_FILES, STEP, count_deaths, watchdog
from tests.flows.conftest import Done, pipeline_job
from tests.support import only_run
from trainer.errors import RunError
from trainer.lease import Lease
from trainer.standing import Standing, find_standing
from trainer.storage import Store


@pytest.mark.parametrize(
    ("labels", "now", "deaths"),
    [
        ({}, Standing(0, 0), 1),
        ({DEATHS: 1, SHARD_FILES: 4, STEP: 10}, Standing(4, 10), 2),
        ({DEATHS: 2, SHARD_FILES: 4, STEP: 10}, Standing(4, 11), 1),
        ({DEATHS: 2, SHARD_FILES: 4, STEP: 0}, Standing(5, 0), 1),
        ({DEATHS: 2, SHARD_FILES: 4, STEP: 10}, Standing(4, 9), 3),
    ],
)
def test_deaths_are_counted_from_the_place_that_was_reached(labels: dict[str, Any], now: Standing, deaths: int) -> None:
    assert count_deaths(labels, now) == {DEATHS: deaths, SHARD_FILES: now.shard_files, STEP: now.step}


@pytest.fixture
def client(server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as found:
        yield found


def crash(client: SyncPrefectClient, flow_run: UUID, starts: bool = True) -> None:
    """The run starts and dies, or its death is only told once more."""
    if starts:
        client.set_flow_run_state(flow_run, Running(), force=True)
    client.set_flow_run_state(flow_run, Crashed(), force=True)


def state_of(client: SyncPrefectClient, flow_run: UUID) -> str:
    state = client.read_flow_run(flow_run).state
    assert state is not None
    return state.type.value


def test_a_run_is_scheduled_again_while_it_gets_further_and_given_up_when_it_does_not(
    client: SyncPrefectClient, done: Done, raw: Path, tmp_path: Path
) -> None:
    job = pipeline_job(raw, tmp_path / "store")
    run = tmp_path / "store" / only_run(done.store)
    deployment = train_model.to_deployment("watched").apply()
    parameters = {"job": job.model_dump(mode="json")}
    made = client.create_flow_run_from_deployment(deployment, parameters=parameters).id
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"job": parameters["job"]}))
    for step, expected in [(5, 1), (5, 2), (10, 1), (10, 2)]:
        (run / "checkpoint-last").write_text(json.dumps({"step": step}))
        assert find_standing(job) == Standing(0, step)
        crash(client, made)
        assert watchdog(flow_run=made) == [made]
        assert state_of(client, made) == "SCHEDULED"
        assert client.read_flow_run(made).labels[DEATHS] == expected
    crash(client, made, starts=False)
    assert watchdog(flow_run=made) == [made], "a death that is told twice counts once"
    assert client.read_flow_run(made).labels[DEATHS] == 2
    crash(client, made)
    with pytest.raises(RunError, match=rf"{made}\) died 3 times at step 10, 0 shard files: not scheduled again"):
        watchdog(flow_run=made)
    assert state_of(client, made) == "CRASHED"
    assert watchdog() == [], "it was told of already"


@pytest.mark.long
def test_what_only_looks_crashed_is_left_alone(client: SyncPrefectClient, done: Done, raw: Path, tmp_path: Path) -> None:
    job = pipeline_job(raw, tmp_path / "store")
    run = only_run(done.store)
    parameters = {"job": job.model_dump(mode="json")}
    deployment = train_model.to_deployment("watched").apply()
    made = client.create_flow_run_from_deployment(deployment, parameters=parameters).id
    store = Store(str(tmp_path / "store"))
    store.write_json(f"{run}/config.json", {"job": parameters["job"]})
    crash(client, made)
    with Lease(store, run):
        assert watchdog(flow_run=made) == []
        assert state_of(client, made) == "CRASHED"
    assert watchdog() == [made], "without an id, all that are crashed"
