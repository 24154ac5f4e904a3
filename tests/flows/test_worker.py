"""Deployed flows on a real server and worker: cancelled, killed, without heartbeats, and without the server."""

import json
import logging
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import SETTINGS, Done, copy_data
from tests.flows.serving import Serving, served, serving
from tests.processes import alive, command_line, descendants, parent_of, stages, start_module, wait_until
from tests.support import final_bytes, only_run, read_rows, small_values, steps_recorded, write_config
from trainer.common.errors import EXIT_PREEMPTED

__all__ = ["served"]

pytestmark = pytest.mark.slow

NOT_STARTED = "headrace: runs that do not start have crashed"

PATIENCE = 240.0
"""Seconds for what a server, a worker and a trainer do one after the other; they do it in a tenth of that when left
alone.
"""


def flow_process(served: Serving) -> int:
    """The flow's process, after it has started the training process."""
    (trainer,) = stages(served.worker.pid)
    return parent_of(trainer)


def last_step(store: Path) -> int:
    step: int = json.loads((store / only_run(store) / "checkpoint-last").read_text())["step"]
    return step


@pytest.mark.deep
def test_a_run_that_is_cancelled_leaves_a_checkpoint_no_process_and_no_temporary_file(
    served: Serving, done: Done, raw: Path, tmp_path: Path
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    changes: dict[str, Any] = {**SETTINGS, "training__save_every": None, "training__max_steps": 100_000}
    flow_run = served.run("train-model/train", small_values(raw, store, **changes))
    wait_until(lambda: steps_recorded(store) >= 3, PATIENCE)
    family = descendants(served.worker.pid)
    served.cancel(flow_run)
    wait_until(lambda: served.state_of(flow_run) == "CANCELLED", PATIENCE)
    wait_until(lambda: not any(alive(pid) for pid in family), PATIENCE)
    assert last_step(store) == steps_recorded(store) >= 3
    told = served.log_of(flow_run)
    assert "Asked to stop: finished work is kept; run this again to continue." in [line.message for line in told]
    assert not [line.message for line in told if line.level >= logging.ERROR or "rash" in line.message]
    assert list((store / ".staging").iterdir()) == []
    assert not (store / only_run(store) / "lease.json").exists()


@pytest.mark.deep
def test_a_flow_that_is_killed_leaves_no_orphan_and_the_watchdog_has_it_finished(
    served: Serving, done: Done, raw: Path, tmp_path: Path
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    flow_run = served.run("train-model/train", small_values(raw, store, **SETTINGS))
    wait_until(lambda: steps_recorded(store) >= 8, PATIENCE)
    flow, trainers = flow_process(served), stages(served.worker.pid)
    assert "flows.engine" in command_line(flow)
    os.kill(flow, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in trainers), 30)
    saved = last_step(store)
    assert 5 <= saved < 40
    wait_until(lambda: served.state_of(flow_run) == "COMPLETED", PATIENCE)
    assert final_bytes(store) == final_bytes(done.store)
    assert served.look(flow_run).labels["headrace.deaths"] == 1
    starts = read_rows(store / only_run(store) / "metrics.jsonl")
    assert [r["step"] for r in starts if r["kind"] == "train"] == list(range(1, 41)), (
        "no step is lost, none is told twice"
    )


@pytest.mark.deep
def test_a_run_that_a_worker_took_and_never_started_is_started_again(
    served: Serving, done: Done, raw: Path, tmp_path: Path
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    flow_run = served.run("train-model/train", small_values(raw, store, **SETTINGS), after=timedelta(days=1))
    served.set_patience(NOT_STARTED, 10.0)  # instead of half an hour
    served.take(flow_run)
    wait_until(lambda: served.state_of(flow_run) != "PENDING", PATIENCE)
    served.set_patience(NOT_STARTED, 1800.0)  # for the new start, and other tests
    wait_until(lambda: served.state_of(flow_run) == "COMPLETED", PATIENCE)
    assert final_bytes(store) == final_bytes(done.store)
    assert served.look(flow_run).labels["headrace.deaths"] == 1


@pytest.mark.long
@pytest.mark.parametrize("seconds", [10, 60])
def test_training_goes_on_while_the_server_is_gone_and_its_end_is_told_when_it_is_back(
    seconds: int, served: Serving, done: Done, raw: Path, tmp_path: Path
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    values = small_values(raw, store, **{**SETTINGS, "training__max_steps": 60 * seconds, "training__save_every": 10})
    flow_run = served.run("train-model/train", values)
    wait_until(lambda: steps_recorded(store) >= 3, PATIENCE)
    served.kill_server()
    gone, before = time.monotonic(), steps_recorded(store)
    wait_until(lambda: time.monotonic() > gone + seconds, seconds + 10.0)
    assert steps_recorded(store) > before
    served.start_server()
    wait_until(lambda: served.state_of(flow_run) == "COMPLETED", PATIENCE)
    assert (store / only_run(store) / "final" / "manifest.json").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_that_stays_gone_ends_the_run_in_bounded_time_with_its_model_committed(
    done: Done, raw: Path, tmp_path: Path
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    config = write_config(tmp_path / "job.yaml", small_values(raw, store, **SETTINGS))
    with serving(tmp_path / "serving") as own:
        running = start_module(tmp_path / "said", "flows.train_model", config, env=own.env)
        wait_until(lambda: steps_recorded(store) >= 3 or running.status() is not None, PATIENCE)
        own.kill_server()
        ended = running.wait(500)  # Prefect's client tries each request for a minute
    assert ended.status == EXIT_PREEMPTED
    assert final_bytes(store) == final_bytes(done.store)
    said = [line for line in ended.stderr.splitlines() if "run this again" in line]  # Prefect's log tries on after it
    assert len(said) == 1 and own.address in said[0], ended.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_machine_that_is_gone_is_noticed_by_its_silence_and_another_continues(
    done: Done, raw: Path, tmp_path: Path
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    with serving(tmp_path / "serving", by_hand=True) as own:
        flow_run = own.run("train-model/train", small_values(raw, store, **{**SETTINGS, "training__max_steps": 400}))
        wait_until(lambda: steps_recorded(store) >= 8, PATIENCE)
        family = [own.worker.pid, *descendants(own.worker.pid)]
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        own.worker.wait()
        assert own.state_of(flow_run) == "RUNNING"
        wait_until(lambda: own.state_of(flow_run) != "RUNNING", 400)
        own.start_worker()
        wait_until(lambda: own.state_of(flow_run) == "COMPLETED", 400)
        assert own.look(flow_run).labels["headrace.deaths"] == 1
