"""The gate at the end of a pipeline, a person's approval, and the flows that promote and roll back by hand."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import State, flow
from prefect.client.orchestration import get_client
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.flow_engine import run_flow
from prefect.states import Crashed, Pending, Scheduled

from flows.data_to_model import data_to_model
from tasks import OWN_SERVER
from tasks.promotion import GATE_NOT_MET, wait_for_approval
from tests.flows.conftest import Done, flow_run_of
from tests.flows.looking import artifacts, latest_run
from tests.processes import Ended, wait_until
from tests.support import write_config
from trainer.config.jobs import PipelineJob
from trainer.config.runs import PromotionConfig
from trainer.records.results import Outcome
from trainer.registry.promotion import find_champion, promote
from trainer.store.manifest import MANIFEST, publish_folder
from trainer.store.names import FINAL, FINAL_KIND
from trainer.store.storage import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(done: Done, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A copy of the finished pipeline's store."""
    copy = tmp_path_factory.mktemp("promoted") / "store"
    shutil.copytree(done.store, copy)
    return Store(str(copy))


def job(done: Done, store: Store, name: str, **gate: Any) -> PipelineJob:
    promotion = PromotionConfig.model_validate({"name": name, **gate})
    return done.job.model_copy(update={"store": store.url, "promotion": promotion})


def run(job: PipelineJob) -> tuple[State[Outcome], Outcome]:
    state = data_to_model(job, return_state=True)
    outcome = state.result()
    assert isinstance(outcome, Outcome)
    return state, outcome


def publish_model_again(store: Store, run: str) -> None:
    """Publish the finished pipeline's model as the only file of another run."""
    (own,) = store.names("runs")
    with store.staging() as folder:
        for path in Path(store.path(f"runs/{own}/{FINAL}")).iterdir():
            if path.name != MANIFEST:
                shutil.copy(path, folder)
        publish_folder(store, folder, f"runs/{run}/{FINAL}", FINAL_KIND, "0" * 16, {"run": "0" * 16})


@pytest.mark.deep
def test_a_model_that_passes_becomes_champion_and_stays_it_when_it_comes_again(done: Done, store: Store) -> None:
    state, outcome = run(job(done, store, "lm", threshold=99.0))
    assert outcome.promotion is not None and outcome.promotion.passed
    champion = find_champion(store, "lm")
    assert champion is not None and champion.run == outcome.run
    assert champion.scores["loss"] == outcome.evaluation.total.figures["loss"]  # type: ignore[union-attr]
    assert any(
        artifact.key == "gate" and "is at most 99" in str(artifact.data) for artifact in artifacts(flow_run_of(state))
    )
    _, again = run(job(done, store, "lm", better_by=0.5))
    assert again.promotion is not None and again.promotion.reason == "it is the champion already"
    assert find_champion(store, "lm") == champion


@pytest.mark.deep
def test_a_gate_that_is_not_met_leaves_the_champion_and_is_told_to_automations(done: Done, store: Store) -> None:
    _, outcome = run(job(done, store, "strict", threshold=0.1))
    assert outcome.promotion is not None and not outcome.promotion.passed
    assert find_champion(store, "strict") is None
    wanted = EventFilter(event=EventNameFilter(name=[GATE_NOT_MET]))

    def told() -> bool:
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/events/filter", json={"filter": wanted.model_dump(mode="json")}).json()[
                "events"
            ]
        return [event["payload"]["run"] for event in found] == [outcome.run]

    wait_until(told, 60)


@pytest.mark.deep
def test_a_champion_that_was_measured_on_something_else_is_measured_anew(done: Done, store: Store) -> None:
    publish_model_again(store, "earlier")
    promote(store, "anew", "runs/earlier", {"loss": 0.1}, "before it was recorded what figures are of")
    _, outcome = run(job(done, store, "anew", better_by=0.0))
    Path(store.path("runs/earlier")).rename(store.path("earlier"))  # other tests know one run
    assert outcome.promotion is not None and outcome.promotion.passed, outcome
    assert outcome.promotion.reason.endswith("measured again") and outcome.evaluation is not None
    champion = find_champion(store, "anew")
    assert champion is not None and champion.run == outcome.run
    assert champion.measured_on == outcome.evaluation.measured_on is not None


@pytest.mark.deep
def test_a_model_waits_for_a_persons_approval(done: Done, store: Store) -> None:
    ended: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: ended.append(run(job(done, store, "asked", threshold=99.0, approval=True))[1])
    )
    thread.start()
    with get_client(sync_client=True) as client:

        def paused() -> bool:
            state = client.read_flow_run(latest_run("data-to-model")).state
            return state is not None and state.is_paused()

        wait_until(paused, 120)
        assert find_champion(store, "asked") is None
        client.resume_flow_run(latest_run("data-to-model"))
    thread.join(60)
    champion = find_champion(store, "asked")
    assert champion is not None and champion.run == ended[0].run


@flow(name="asks")
def asks() -> str:
    wait_for_approval()
    return "approved"


@pytest.mark.deep
def test_a_run_that_is_started_again_while_it_waits_asks_again(server: dict[str, str]) -> None:
    ended: dict[str, Any] = {}

    def start(name: str) -> threading.Thread:
        def go_on() -> None:
            try:
                ended[name] = run_flow(asks, flow_run=client.read_flow_run(run))
            except BaseException as error:
                ended[name] = error

        thread = threading.Thread(target=go_on)
        thread.start()
        return thread

    def pauses() -> int:
        return sum(state.is_paused() for state in client.read_flow_run_states(run))

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(asks).id
        first = start("the first")
        wait_until(lambda: pauses() == 1, 60)
        for state in (Crashed(), Scheduled(), Pending()):
            client.set_flow_run_state(run, state, force=True)
        second = start("the second")
        wait_until(lambda: pauses() == 2, 60)
        client.resume_flow_run(run)
        for thread in (first, second):
            thread.join(60)
        assert client.read_flow_run(run).state_name == "Completed"
    assert ended["the second"] == "approved" and ended["the first"] != "approved"


@pytest.mark.deep
def test_a_command_that_starts_its_own_server_does_not_wait_for_approval(
    done: Done, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_SERVER, "1")
    verdict = run(job(done, store, "unasked", threshold=99.0, approval=True))[1].promotion
    assert verdict is not None and not verdict.passed and find_champion(store, "unasked") is None
    assert "is at most 99; not promoted: promotion.approval requires a person's approval" in verdict.reason


@pytest.mark.deep
def test_promotion_and_rollback_by_hand(
    done: Done, store: Store, command: Callable[..., Ended], tmp_path: Path
) -> None:
    (own,) = store.names("runs")
    publish_model_again(store, "other")

    def move(flow: str, *words: str, **values: str) -> str:
        config = write_config(tmp_path / "job.yaml", {"store": store.url, "name": "hand", **values})
        ended = command(f"flows.{flow}", config, *words)
        return ended.stdout if ended.status == 0 else f"{ended.status}: {ended.stderr}"

    assert f"would make runs/{own} the champion of models/hand in " in move("promote", "--dry-run", run=own)
    assert f"runs/{own} since" in move("promote", run=own, reason="the first")
    assert f"runs/{own} is already the champion of models/hand in " in move("promote", "--dry-run", run=f"runs/{own}")
    assert "runs/other since" in move("promote", run="other")
    assert f"would make runs/{own} the champion of models/hand in {store.url}\n" in move("rollback", "--dry-run")
    for _ in range(2):
        assert f"runs/{own} since" in move("rollback", run="other", reason="worse in use")
    assert f"runs/{own} is already the champion of models/hand in " in move("rollback", "--dry-run", run="runs/other")
    for words in ((), ("--dry-run",)):
        assert "2: " in (refused := move("rollback", *words)) and "has no champion before" in refused
    assert "there is no run 'none' in " in move("promote", run="none")
    for words in ((), ("--dry-run",)):
        assert "there is no run 'oth' in " in move("promote", *words, run="oth"), "a beginning could be another run's"
