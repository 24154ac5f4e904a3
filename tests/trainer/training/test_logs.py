"""A run's log lines: all of them in its folder, and as many as people can read for whoever watches."""

import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainer.training.logs
from trainer.store.storage import Store
from trainer.training.logs import AsEvents, kept_log

KEY = "runs/a/logs/rank-0.log"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("test-logs")
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()


def test_every_line_of_every_start_is_kept_in_the_runs_folder(any_store: Store, logger: logging.Logger) -> None:
    for start in (1, 2):
        with kept_log(any_store, "runs/a", 0):
            logger.info("start %d", start)
            logger.warning("take care")
        logger.info("after the end")
    lines = any_store.read_bytes(KEY).decode().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO test-logs: start 1", "WARNING test-logs: take care", "INFO test-logs: start 2",
        "WARNING test-logs: take care",
    ]  # fmt: skip


def test_a_log_that_cannot_be_written_is_given_up_with_one_warning(
    tmp_path: Path, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    with kept_log(Store(str(tmp_path)), "runs/a", 0):
        logger.info("one")
        size, limit = (tmp_path / KEY).stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
        try:
            logger.info("two")
            logger.info("three")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "rank-0.log" in warning and "File too large" in warning


def test_lines_for_others_are_limited_and_those_left_out_are_counted(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer.training.logs, "LINES", 3)
    handler = AsEvents(rank=1)
    logger.addHandler(handler)
    logger.propagate = False
    for number in range(5):
        logger.info("line %d", number)
    logger.warning("take care")
    monkeypatch.setattr(trainer.training.logs, "SECONDS", 0.0)  # the minute is over
    logger.info("line 5")
    handler.close()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = [event["message"] for event in events]
    assert said[:4] == ["line 0", "line 1", "line 2", "take care"]
    assert said[4].startswith("2 lines are left out") and said[5:] == ["line 5"]
    assert {event["rank"] for event in events} == {1}


def test_the_clients_of_a_bucket_do_not_log_where_they_found_its_address() -> None:
    program = (
        "import botocore.session, logging; from trainer.training.logs import *; "
        "start_logging(logging.INFO, for_terminals()); "
        "botocore.session.get_session().create_client('s3', region_name='us-east-1'); log.info('end')"
    )
    address = {**os.environ, "AWS_ENDPOINT_URL": "http://localhost:9"}
    ended = subprocess.run([sys.executable, "-c", program], env=address, capture_output=True, text=True, check=True)
    assert len(ended.stderr.splitlines()) == 1 and ended.stderr.endswith("INFO end\n")
