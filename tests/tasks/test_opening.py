"""What every flow begins with: stops are told as stops."""

import asyncio
import logging

import pytest
from prefect.exceptions import TerminationSignal
from prefect.states import exception_to_crashed_state

from tasks.opening import RUN_LOGGERS, STOPPED, open_flow


def log(name: str, message: str, caplog: pytest.LogCaptureFixture) -> tuple[int, str]:
    """The level and the message with which a record of Prefect's is logged."""
    logger = logging.getLogger(name)
    logger.addHandler(caplog.handler)
    try:
        logger.error(message)
    finally:
        logger.removeHandler(caplog.handler)
    record = caplog.records[-1]
    return record.levelno, record.getMessage()


@pytest.mark.parametrize("name", RUN_LOGGERS)
def test_a_run_that_is_asked_to_stop_is_not_said_to_have_crashed(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.opening.use_credentials", lambda: None)
    open_flow()
    stopped = asyncio.run(exception_to_crashed_state(TerminationSignal(15))).message
    assert log(name, f"Crash detected! {stopped}", caplog) == (logging.WARNING, STOPPED)
    logged = len(caplog.records)
    log(name, f"Finished in state Crashed({stopped!r})", caplog)
    assert len(caplog.records) == logged
    crashed = asyncio.run(exception_to_crashed_state(MemoryError("of something else"))).message
    level, message = log(name, f"Crash detected! {crashed}", caplog)
    assert level == logging.ERROR
    assert message.startswith("Crash detected! Execution was interrupted by an unexpected exception")
