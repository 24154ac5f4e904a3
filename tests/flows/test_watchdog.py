"""The watchdog: which runs it reschedules, and which it gives up."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_WORKER_PREFETCH_SECONDS, temporary_settings
from prefect.states import Cancelling, Crashed, Pending, Running, Scheduled

from flows.evaluate_model import evaluate_model
from flows.promote import promote_model
from flows.train_model import train_model
from flows.watchdog import DEATHS, FILES, REST, STEP, count_deaths, look, settling, watchdog
from tasks.turns import TURN, _take
from tests.flows.conftest import pipeline_job
from trainer.common.errors import RunError, StorageError
from trainer.config.files import override
from trainer.config.jobs import PipelineJob
from trainer.records.lease import Lease
from trainer.records.sealed import write_pointer, write_sealed
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store
from trainer.training.identity import recorded
from trainer.training.job_progress import Standing, find_standing


@pytest.mark.parametrize(
    ("labels", "now", "deaths"),
    [
        ({}, Standing(0, 0), 1),
        ({DEATHS: 1, FILES: 4, STEP: 10}, Standing(4, 10), 2),
        ({DEATHS: 2, FILES: 4, STEP: 10}, Standing(4, 11), 1),
        ({DEATHS: 2, FILES: 4, STEP: 0}, Standing(5, 0), 1),
        ({DEATHS: 2, FILES: 4, STEP: 10}, Standing(4, 9), 3),
    ],
)
def test_deaths_are_counted_from_the_place_that_was_reached(labels: dict[str, Any], now: Standing, deaths: int) -> None:
    assert count_deaths(labels, now) == {DEATHS: deaths, FILES: now.files, STEP: now.step}


@pytest.mark.parametrize(("taken", "waits"), [(0, 2), (8, 4), (30, 15), (7200, 60)])
def test_the_longer_a_look_took_to_begin_the_longer_the_new_start_waits(taken: int, waits: int) -> None:
    """The process that reports the death a second time takes as long to load."""
    now = datetime.now(UTC)
    run = FlowRun(flow_id=uuid4(), state=Crashed(timestamp=now - timedelta(seconds=taken)))
    for early in (0, 10):  # a worker claims a run by so many seconds early
        with temporary_settings({PREFECT_WORKER_PREFETCH_SECONDS: early}):
            assert settling(run, now).total_seconds() == min(early + waits, 60)


@pytest.fixture
def client(server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as found:
        yield found


def crash(client: SyncPrefectClient, flow_run: UUID, *starts: State) -> None:
    """Start the run and report its death; without a start, only report the death again."""
    for state in (*starts, Crashed()):
        client.set_flow_run_state(flow_run, state, force=True)


def deployed(client: SyncPrefectClient, job: PipelineJob, *words: str) -> UUID:
    """A run of the training deployment, with some `key=value` words."""
    deployment = train_model.to_deployment("watched").apply()
    parameters = {"job": job.model_dump(mode="json"), **({"set": words} if words else {})}
    return client.create_flow_run_from_deployment(deployment, parameters=parameters).id


def begun(job: PipelineJob) -> Path:
    """The folder of the job's run, as left by a process that has just claimed it."""
    run = Path(job.store) / "runs" / f"{job.name}-01234567"
    run.mkdir(parents=True)
    config = {"fingerprint": fingerprint({}), "identity": {}, "job": recorded(job)}
    write_sealed(Store(job.store), f"runs/{run.name}/config.json", config)
    return run


def state_of(client: SyncPrefectClient, flow_run: UUID) -> str:
    state = client.read_flow_run(flow_run).state
    assert state is not None
    return state.type.value


def test_a_run_is_scheduled_again_while_it_gets_further_and_given_up_when_it_does_not(
    client: SyncPrefectClient, raw: Path, tmp_path: Path
) -> None:
    job = pipeline_job(raw, tmp_path / "store")
    made, run = deployed(client, job), begun(job)
    for step, expected in [(5, 1), (5, 2), (10, 1), (10, 2)]:
        write_pointer(Store(job.store), f"runs/{run.name}/checkpoint-last", step, None)
        assert find_standing(job) == Standing(0, step)
        crash(client, made, Pending(), Running())
        assert watchdog(flow_run=made) == [made]
        assert state_of(client, made) == "SCHEDULED"
        assert client.read_flow_run(made).labels[DEATHS] == expected
        scheduled = client.read_flow_run(made).state
        assert scheduled is not None and scheduled.state_details.scheduled_time is not None
        rest = scheduled.state_details.scheduled_time - scheduled.timestamp
        crashed = [each for each in client.read_flow_run_states(made) if each.is_crashed()][-1]
        settled = settling(FlowRun(flow_id=made, state=crashed), scheduled.timestamp)
        assert abs(rest - max(settled, REST * (expected - 1))) < timedelta(seconds=5)
    crash(client, made)  # before it is started again: that waits long enough
    assert watchdog(flow_run=made) == [made], "a death that is told twice counts once"
    assert client.read_flow_run(made).labels[DEATHS] == 2
    crash(client, made, Pending(), Running())
    with pytest.raises(RunError, match=rf"died 3 times at step 10, 0 files: not rescheduled.*flow-run retry {made}"):
        watchdog(flow_run=made)
    assert state_of(client, made) == "CRASHED"
    assert watchdog() == [], "it was told of already"


def test_a_run_with_a_parameter_that_its_flow_does_not_have_is_not_started_again(
    client: SyncPrefectClient, raw: Path, tmp_path: Path
) -> None:
    job = pipeline_job(raw, tmp_path / "store").model_dump(mode="json")
    deployment = train_model.to_deployment("watched").apply()
    made = client.create_flow_run_from_deployment(deployment, parameters={"job": job, "sett": ["run=x"]}).id
    crash(client, made, Pending())
    assert watchdog(flow_run=made) == [] and state_of(client, made) == "CRASHED"


def test_a_run_that_was_cancelled_before_it_crashed_is_not_started_again(
    client: SyncPrefectClient, raw: Path, tmp_path: Path
) -> None:
    made = deployed(client, pipeline_job(raw, tmp_path / "store"))
    crash(client, made, Pending(), Running(), Cancelling())
    assert watchdog(flow_run=made) == []
    assert state_of(client, made) == "CANCELLED"
    crash(client, made, Pending(), Running())
    assert watchdog(flow_run=made) == [made], "a later start by a person is another wish"


def test_the_turn_of_a_dead_process_ends(client: SyncPrefectClient, raw: Path, tmp_path: Path) -> None:
    limit = f"test-{uuid4()}"
    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=limit, limit=1))
    job = pipeline_job(raw, tmp_path / "store")
    made, run = deployed(client, job), begun(job)
    write_pointer(Store(job.store), f"runs/{run.name}/checkpoint-last", 5, None)
    client.update_flow_run_labels(made, {TURN: str(_take(limit))})
    crash(client, made, Pending(), Running())
    assert watchdog(flow_run=made) == [made]
    assert _take(limit) is None, "a run that is only silent may hold its turn"
    for state in (Pending(), Running(), Crashed(message="Process exited with status code: -9")):
        client.set_flow_run_state(made, state, force=True)
    assert watchdog(flow_run=made) == [made]
    assert _take(limit) is not None
    client.delete_global_concurrency_limit_by_name(limit)


def test_a_run_with_a_changed_value_is_found_by_that(client: SyncPrefectClient, raw: Path, tmp_path: Path) -> None:
    job = pipeline_job(raw, tmp_path / "store")
    made = deployed(client, job, "training.max_steps=9", "name=changed")
    run = begun(override(job, ["training.max_steps=9", "name=changed"]))
    write_pointer(Store(job.store), f"runs/{run.name}/checkpoint-last", 7, None)
    crash(client, made, Pending(), Running())
    with Lease(Store(job.store), f"runs/{run.name}"):
        assert watchdog(flow_run=made) == [], "its process lives"
    assert watchdog(flow_run=made) == [made]
    assert client.read_flow_run(made).labels[STEP] == 7


def test_a_run_that_dies_before_its_flow_is_loaded_is_given_up(
    client: SyncPrefectClient, raw: Path, tmp_path: Path
) -> None:
    made = deployed(client, pipeline_job(raw, tmp_path / "store"))
    for _ in range(2):
        crash(client, made, Pending())
        assert watchdog(flow_run=made) == [made]
    crash(client, made, Pending())
    assert client.read_flow_run(made).run_count == 0
    with pytest.raises(RunError, match="died 3 times at step 0, 0 files"):
        watchdog(flow_run=made)


def test_what_measures_a_model_is_scheduled_again_and_what_promotes_one_is_not(
    client: SyncPrefectClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for flow, values in ((evaluate_model, {"checkpoint": "x"}), (promote_model, {"name": "lm", "run": "x"})):
        deployment = flow.to_deployment("watched").apply()
        parameters = {"job": {"store": str(tmp_path / "store"), **values}}
        made = client.create_flow_run_from_deployment(deployment, parameters=parameters).id
        crash(client, made, Pending(), Running())
        assert watchdog(flow_run=made) == ([made] if flow is evaluate_model else [])
    assert "crashed; its flow is not restarted automatically" in caplog.text


def test_a_run_that_curates_gets_further_by_what_it_has_measured(
    client: SyncPrefectClient, raw: Path, tmp_path: Path
) -> None:
    job = pipeline_job(raw, tmp_path / "store")
    made, measures = deployed(client, job), Path(job.store) / "measures" / "code-0123" / "exact"
    measures.mkdir(parents=True)
    for number in range(4):
        (measures / f"{number}.npz").write_bytes(b"measured")
        crash(client, made, Pending())
        assert watchdog(flow_run=made) == [made]
        assert client.read_flow_run(made).labels[DEATHS] == 1


def test_a_run_whose_process_lives_on_is_looked_at_again_until_that_has_ended(
    client: SyncPrefectClient, raw: Path, tmp_path: Path
) -> None:
    job = pipeline_job(raw, tmp_path / "store")
    made, run = deployed(client, job), begun(job)
    watching = watchdog.to_deployment("watching").apply()

    def looks() -> list[FlowRun]:
        """The scheduled checks."""
        wanted = DeploymentFilter(id=DeploymentFilterId(any_=[watching]))
        found = client.read_flow_runs(deployment_filter=wanted)
        return [each for each in found if each.state and each.state.is_scheduled()]

    def now(look: FlowRun) -> Any:
        """Set its scheduled time to now."""
        client.set_flow_run_state(look.id, Scheduled(), force=True)
        return run_flow(watchdog, client.read_flow_run(look.id), look.parameters)

    crash(client, made, Pending(), Running())
    with Lease(Store(job.store), f"runs/{run.name}"):
        assert watchdog(flow_run=made) == [], "by hand"
        assert looks() == []
        parameters = {"flow_run": str(made), "deaths": 5}
        assert now(client.create_flow_run_from_deployment(watching, parameters=parameters)) == []
        assert state_of(client, made) == "CRASHED"
        (later,) = looks()
        assert later.parameters == parameters
        assert later.state and later.state.state_details.scheduled_time
        assert 25 < (later.state.state_details.scheduled_time - later.state.timestamp).total_seconds() < 120
    assert now(later) == [made]
    assert state_of(client, made) == "SCHEDULED"
    assert looks() == []


@pytest.mark.deep
def test_an_error_that_passes_loses_no_crash_and_one_that_stays_stops_no_other(
    client: SyncPrefectClient, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "retry_delay_seconds", 0)
    broken, whole = (pipeline_job(raw, tmp_path / name) for name in ("broken", "whole"))
    bad, good = deployed(client, broken), deployed(client, whole)
    config = begun(broken) / "config.json"
    written = config.read_text()
    for made in (bad, good):
        crash(client, made, Pending(), Running())
    config.write_text("{")
    with pytest.raises(RunError, match=rf"^flow run {bad}: .*config.json is damaged: it is not valid JSON"):
        watchdog()
    assert (state_of(client, bad), state_of(client, good)) == ("CRASHED", "SCHEDULED")
    fates = iter([StorageError("slow down"), StorageError("slow down")])

    def passing(job: PipelineJob) -> Standing:
        for fate in fates:
            raise fate
        return find_standing(job)

    config.write_text(written)
    monkeypatch.setattr("flows.watchdog.find_standing", passing)
    assert watchdog() == [bad], "without an id, all that are crashed"
    assert client.read_flow_run(bad).labels[DEATHS] == 1
