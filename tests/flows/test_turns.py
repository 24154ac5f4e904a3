"""Stages that compute on the same devices, or that tokenize, take turns on a server that limits them."""

import threading
import time
from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

from tasks.turns import DEVICES, devices, turn


@pytest.fixture
def limit() -> Iterator[str]:
    """A limit of one slot."""
    name = "test-turns"
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        yield name
        client.delete_global_concurrency_limit_by_name(name)


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


def test_nothing_waits_and_nothing_is_said_where_there_is_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    @flow
    def alone() -> None:
        with turn("test-no-such-limit"):
            pass

    alone()
    assert "test-no-such-limit" not in caplog.text


def test_each_set_of_devices_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_GPU_SET", raising=False)
    assert devices() == DEVICES == "headrace-devices"
    monkeypatch.setenv("HEADRACE_GPU_SET", "a100")
    assert devices() == "headrace-devices-a100"
