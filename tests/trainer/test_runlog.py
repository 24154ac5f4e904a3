"""The record of a run: whole lines, each step once, also after a kill and a resume."""

import itertools
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.records import read_records
from trainer.runlog import RunLog
from trainer.storage import Store

RUN = "runs/tiny"


def write(store: Store, resumed_at: int, *steps: int) -> None:
    with RunLog(store, RUN, resumed_at) as log:
        for step in steps:
            log.write("train", step, loss=float(step))


def steps(store: Store) -> list[int]:
    return [record["step"] for record in read_records(store, RUN)]


def test_each_record_is_a_line_of_json_with_its_kind_and_step(empty_store: Store) -> None:
    with RunLog(empty_store, RUN, 0) as log:
        log.write("train", 1, loss=2.5, corpora={"code": 1.0})
        line = empty_store.read_bytes(f"{RUN}/metrics.jsonl")
        assert line.endswith(b"\n"), "readable while the run goes on"
    assert json.loads(line) == {"kind": "train", "step": 1, "loss": 2.5, "corpora": {"code": 1.0}}


def test_a_run_without_records_has_none(empty_store: Store) -> None:
    assert read_records(empty_store, RUN) == []


def test_records_of_steps_that_a_resumed_run_takes_again_are_dropped(empty_store: Store) -> None:
    write(empty_store, 0, 1, 2, 3, 4, 5)
    write(empty_store, 3, 4, 5, 6)
    assert steps(empty_store) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_begins_anew_keeps_nothing(empty_store: Store) -> None:
    write(empty_store, 0, 0, 1, 2)
    write(empty_store, 0, 0, 1)
    assert steps(empty_store) == [0, 1]


def test_a_line_that_a_kill_cut_short_is_left_out(empty_store: Store) -> None:
    write(empty_store, 0, 1, 2)
    path = empty_store.fetch(f"{RUN}/metrics.jsonl")
    path.write_bytes(path.read_bytes()[:-5])
    assert steps(empty_store) == [1]
    write(empty_store, 1, 2)
    assert steps(empty_store) == [1, 2]


def test_tensorboard_shows_what_the_records_say_after_a_resume(empty_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its files are read in the order of their names, which begin with the second of their making.
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", itertools.count(1_800_000_000).__next__)
    write(empty_store, 0, 0, 1, 2, 3)
    write(empty_store, 0, 0, 1, 2)
    write(empty_store, 1, 2, 3)
    events = EventAccumulator(str(empty_store.fetch(f"{RUN}/tensorboard"))).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
