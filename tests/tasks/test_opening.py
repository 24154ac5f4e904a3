"""The first steps of every flow: requested stops are reported as such."""

import asyncio
import logging

import pytest
from prefect.exceptions import TerminationSignal
from prefect.states import exception_to_crashed_state

from tasks.opening import RUN_LOGGERS, STOPPED, open_flow, report_once
from trainer.config.jobs import GarbageJob


def told(name: str, message: str) -> tuple[int, str] | None:
    """The level and message of a Prefect error record with this message after the filter."""
    logger = logging.getLogger(name)
    record = logger.makeRecord(name, logging.ERROR, __file__, 1, message, (), None)
    return (record.levelno, record.getMessage()) if logger.filter(record) else None


@pytest.mark.parametrize("name", RUN_LOGGERS)
def test_a_run_that_is_asked_to_stop_is_not_said_to_have_crashed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.opening.use_credentials", lambda: None)
    assert open_flow(GarbageJob(store="data/store"), ["older_than_days=3"]) == GarbageJob(
        store="data/store", older_than_days=3
    )
    stopped = asyncio.run(exception_to_crashed_state(TerminationSignal(15))).message
    assert told(name, f"Crash detected! {stopped}") == (logging.WARNING, STOPPED)
    assert told(name, f"Finished in state Crashed({stopped!r})") is None
    crashed = asyncio.run(exception_to_crashed_state(MemoryError("of something else"))).message
    level, message = told(name, f"Crash detected! {crashed}") or (0, "")
    assert level == logging.ERROR
    assert message.startswith("Crash detected! Execution was interrupted by an unexpected exception")


@pytest.mark.parametrize("name", RUN_LOGGERS)
def test_names_and_texts_in_a_log_cannot_control_a_terminal(name: str) -> None:
    logging.getLogger(name).addFilter(report_once)
    assert told(name, "100 % of a\x1b]0;title\x07.txt") == (logging.ERROR, r"100 % of a\x1b]0;title\x07.txt")
