"""Stages that compute on the same devices, or that tokenize, take turns on a server that limits them."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
from prefect.runtime import flow_run

from flows.evaluate_model import evaluate_model
from tasks.turns import DEVICES, TOKENIZATION, TURN, limit_of, turn
from tests.flows.conftest import Done
from tests.processes import free_port, wait_until
from trainer.common.errors import Preempted
from trainer.kinds.pretraining.kind import evaluation_of


@contextmanager
def limited(name: str, taken: int = 0, slots: int = 1) -> Iterator[str]:
    """A limit of one slot or none, free or taken, during the block."""
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=slots, active_slots=taken))
        try:
            yield name
        finally:
            client.delete_global_concurrency_limit_by_name(name)


@pytest.fixture
def limit() -> Iterator[str]:
    """A limit of one slot."""
    with limited("test-turns") as name:
        yield name


@pytest.mark.deep
def test_the_second_waits_until_the_first_is_done(limit: str) -> None:
    first_has_it, seen = threading.Event(), []

    @flow
    def first() -> None:
        with turn(limit):
            first_has_it.set()
            time.sleep(2)  # the work that is waited for
            seen.append("first is done")

    @flow
    def second() -> None:
        assert first_has_it.wait(60)
        with turn(limit):
            seen.append("second has its turn")

    flows = [threading.Thread(target=each) for each in (first, second)]
    for each in flows:
        each.start()
    for each in flows:
        each.join(120)
    assert seen == ["first is done", "second has its turn"]


def test_a_turn_ends_with_the_error_of_its_block(limit: str) -> None:
    @flow
    def failing() -> None:
        with turn(limit):
            raise ArithmeticError

    for _ in range(2):  # the second would wait for ever
        with pytest.raises(ArithmeticError):
            failing()


@pytest.mark.slow
def test_what_is_measured_already_waits_for_no_turn(done: Done) -> None:
    before = done.state.result()
    with limited(DEVICES, taken=1):
        again = evaluate_model(evaluation_of(done.job, before.run), return_state=True).result()
    assert again == before.evaluation.model_copy(update={"reused": True})


@pytest.mark.parametrize("expires", [False, True])
def test_a_turn_is_renewed_or_taken_again_while_it_is_held(
    expires: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.turns.RENEWED_EVERY", 0.01)
    renewed, renew = list[UUID](), SyncPrefectClient.renew_concurrency_lease

    def followed(self: SyncPrefectClient, lease_id: UUID, lease_duration: float) -> Any:
        renewed.append(lease_id)
        if expires and len(renewed) == 2:
            self.release_concurrency_slots_with_lease(lease_id)
        return renew(self, lease_id, lease_duration)

    monkeypatch.setattr(SyncPrefectClient, "renew_concurrency_lease", followed)

    @flow
    def held() -> str:
        with turn(limit):
            wait_until(lambda: len(renewed) > 4)
        assert flow_run.id is not None
        return flow_run.id

    with get_client(sync_client=True) as client:
        label = client.read_flow_run(UUID(held())).labels[TURN]
        assert client.read_global_concurrency_limit_by_name(limit).active_slots == 0
    assert label == str(renewed[-1]) and len(set(renewed)) == 1 + expires


def test_a_busy_server_is_asked_again_soon(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [503, 503]
    send = httpx.HTTPTransport.handle_request

    def answer(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("-with-lease") and busy:
            return httpx.Response(busy.pop())
        return send(self, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    waits = {"sleep": lambda _: pytest.fail("Prefect's client waits")}
    monkeypatch.setattr("prefect.client.base.time", SimpleNamespace(**{**vars(time), **waits}))

    @flow
    def work() -> str:
        with turn(limit):
            return "done"

    assert work() == "done" and not busy


@pytest.mark.parametrize(("slots", "taken"), [(1, 1), (0, 0)])
def test_one_that_waits_for_a_turn_can_be_stopped(slots: int, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.turns.stop_requested", lambda: True)

    @flow
    def waiting() -> None:
        with turn("test-taken"):
            pass

    with limited("test-taken", taken, slots), pytest.raises(Preempted):
        waiting()


def test_nothing_waits_where_there_is_no_limit_and_it_is_said_if_one_is_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    @flow
    def alone() -> None:
        with turn("test-no-such-limit"):
            pass

    alone()
    assert "test-no-such-limit" not in caplog.text
    monkeypatch.setenv("HEADRACE_GPU_SET", "a100")
    caplog.set_level(logging.INFO)
    alone()
    assert (
        "the server has no limit test-no-such-limit-a100, which HEADRACE_GPU_SET asks for: nothing waits" in caplog.text
    )


def test_each_machine_has_limits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_GPU_SET", raising=False)
    assert [limit_of(DEVICES), limit_of(TOKENIZATION)] == ["headrace-devices", "headrace-tokenization"]
    monkeypatch.setenv("HEADRACE_GPU_SET", "a100")
    assert [limit_of(DEVICES), limit_of(TOKENIZATION)] == ["headrace-devices-a100", "headrace-tokenization-a100"]


def nowhere() -> str:
    """The address of a server that does not answer."""
    return f"http://127.0.0.1:{free_port()}/api"


def test_a_server_that_is_gone_before_the_turn_stops_nothing(
    limit: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks.turns.get_client", lambda **_: SyncPrefectClient(nowhere()))

    @flow
    def alone() -> str:
        with turn(limit):
            return "done"

    assert alone() == "done"
    assert "running without a turn" in caplog.text


@pytest.mark.deep
def test_a_server_that_is_gone_after_the_turn_hides_neither_result_nor_error(
    limit: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    def work(error: Exception | None) -> str:
        with monkeypatch.context() as patch, turn(limit):
            patch.setattr("tasks.turns.get_client", lambda **_: SyncPrefectClient(nowhere()))
            if error:
                raise error
            return "done"

    with get_client(sync_client=True) as client:
        for error, outcome in ((None, nullcontext()), (ArithmeticError(), pytest.raises(ArithmeticError))):
            client.update_global_concurrency_limit(limit, GlobalConcurrencyLimitUpdate(active_slots=0))
            with outcome:
                assert work(error) == "done"
            assert "cannot release the turn" in caplog.text
            caplog.clear()
