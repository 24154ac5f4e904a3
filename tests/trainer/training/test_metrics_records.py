"""The record of a run: whole lines, each step once, also after a kill and a resume."""

import itertools
import json
import resource
import threading

import pytest

from tests.trainer.report_runs import step_record
from trainer.common import transient
from trainer.records.sealed import seal_line
from trainer.store.storage import Store
from trainer.training.metrics_reader import ASKED_BY, ENDED, ROLLBACK, read_records
from trainer.training.metrics_writer import RunLog

RUN = "runs/tiny"


def write(store: Store, resumed_at: int, *steps: int, kind: str = "train") -> None:
    with RunLog(store, RUN, resumed_at) as log:
        for step in steps:
            log.write(**{**step_record(step), "loss": float(step), "kind": kind})


def steps(store: Store) -> list[int]:
    return [record["step"] for record in read_records(store, RUN)]


def test_each_record_is_a_line_of_json_with_its_kind_and_step(empty_store: Store) -> None:
    with RunLog(empty_store, RUN, 0) as log:
        log.write("train", 1, loss=2.5, corpora={"code": 1.0})
        line = empty_store.read_bytes(f"{RUN}/metrics.jsonl")
        assert line.endswith(b"\n"), "readable while the run goes on"
    found = json.loads(line)
    assert found == {
        "kind": "train",
        "step": 1,
        "loss": 2.5,
        "corpora": {"code": 1.0},
        "record": 1,
        "checksum": found["checksum"],
    }


def test_records_of_steps_that_a_resumed_run_takes_again_are_dropped(empty_store: Store) -> None:
    write(empty_store, 0, 1, 2, 3, 4, 5)
    write(empty_store, 3, 4, 5, 6)
    assert steps(empty_store) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_begins_anew_keeps_nothing(empty_store: Store) -> None:
    write(empty_store, 0, 0, 1, 2)
    write(empty_store, 0, 0, 1)
    assert steps(empty_store) == [0, 1]


def test_a_record_of_which_a_full_disk_takes_only_a_part_is_written_once_there_is_room(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.1)
    with RunLog(empty_store, RUN, 0) as log:
        log.write(**step_record(1))
        path, unlimited = empty_store.fetch(f"{RUN}/metrics.jsonl"), resource.getrlimit(resource.RLIMIT_FSIZE)
        room = threading.Timer(0.5, resource.setrlimit, [resource.RLIMIT_FSIZE, unlimited])
        room.start()
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, unlimited[1]))
        try:
            log.write(**step_record(2))
        finally:
            room.join()
    assert steps(empty_store) == [1, 2]
    assert path.read_bytes().count(b"\n") == 2


def test_damaged_records_are_dropped_when_a_run_resumes_or_goes_back(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(empty_store, 0, 1, 2, 3, 4)
    key = f"{RUN}/metrics.jsonl"
    lines = empty_store.read_bytes(key).splitlines(keepends=True)
    empty_store.write_bytes(key, b"".join([lines[0], lines[1].replace(b"2.0", b"3.0"), *lines[2:]]) + b'{"kind": "tra')
    with RunLog(empty_store, RUN, 3) as log:
        assert f"{key}: 1 record ignored because of a wrong checksum: line 2" in caplog.text
        assert empty_store.read_bytes(key) == lines[0] + lines[2]
        log.write("train", 4, loss=4.0)
        path = empty_store.fetch(key)
        path.write_bytes(path.read_bytes().replace(b'"step": 1', b'"step": 0'))
        log.rewind(3)
    assert empty_store.read_bytes(key) == lines[2]


def test_records_that_are_missing_are_told_by_their_numbers_also_after_a_resume(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(empty_store, 0, *range(1, 10), kind="save")
    key = f"{RUN}/metrics.jsonl"
    lines = empty_store.read_bytes(key).splitlines(keepends=True)
    for left, gone, told in (
        ([0, 1, 2, 5, 6, 8], 3, "records are missing before records 6, 9"),
        ([3, 4, 5, 6, 7, 8], 3, "records are missing before record 4"),
        ([0, 2, 1, 4, 3, 5, 7, 8], 1, "records are missing before record 8"),
    ):
        empty_store.write_bytes(key, b"".join(lines[place] for place in left))
        for resumed_at in (None, 9, 9):
            caplog.clear()
            if resumed_at is not None:
                write(empty_store, resumed_at, 10, kind="save")
            assert steps(empty_store) == sorted(place + 1 for place in left) + [10] * (resumed_at is not None)
            assert f"{key}: {told}" in caplog.text
        assert empty_store.read_bytes(key).count(b"\n") == len(lines) - gone + 1
    empty_store.write_bytes(key, b"".join([*lines[:2], b"{}\n", *lines[4:]]))
    caplog.clear()
    assert steps(empty_store) == [1, 2, 5, 6, 7, 8, 9]
    assert "line 3" in caplog.text and "records are missing before record 5" in caplog.text


def test_records_in_another_order_or_twice_are_read_in_theirs(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(empty_store, 0, 1, 2, 3)
    key = f"{RUN}/metrics.jsonl"
    lines = empty_store.read_bytes(key).splitlines(keepends=True)
    for order in itertools.permutations([*lines, lines[0]]):
        empty_store.write_bytes(key, b"".join(order))
        assert steps(empty_store) == [1, 2, 3]
    assert caplog.text == ""
    other = seal_line(key, 2, {**step_record(7)})
    empty_store.write_bytes(key, b"".join([*lines, other]))
    assert steps(empty_store) == [1, 7, 3]
    assert f"{key}: record 2 ignored because another record has the same number" in caplog.text


def test_a_last_record_that_cannot_be_is_dropped_when_a_run_resumes(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(empty_store, 0, 1, 2)
    key, kept = f"{RUN}/metrics.jsonl", empty_store.read_bytes(f"{RUN}/metrics.jsonl")
    for record in ({"kind": "train"}, {"kind": "commit", "step": "x"}, {"step": 3}):
        empty_store.write_bytes(key, kept + seal_line(key, 3, record))
        caplog.clear()
        write(empty_store, 2, 3)
        assert steps(empty_store) == [1, 2, 3]
        assert f"{key}: a record is ignored because it is not valid" in caplog.text


def test_the_record_of_the_end_is_written_anew_by_a_run_that_goes_on(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(empty_store, 0, 1, 2, kind="save")
    for _ in range(2):
        with RunLog(empty_store, RUN, 2) as log:
            log.write(ENDED, 2)
    assert [record["kind"] for record in read_records(empty_store, RUN)] == ["save", "save", ENDED]
    assert caplog.text == ""


@pytest.mark.parametrize("breaks", [1, 3])
def test_an_evaluation_that_is_made_again_is_recorded_once(empty_store: Store, breaks: int) -> None:
    """The evaluation of step 2 was broken off; what was measured and saved in its place was not committed."""
    write(empty_store, 0, 1, 2, kind="save")
    for _ in range(breaks):
        with RunLog(empty_store, RUN, 2, unmeasured=True) as log:
            log.write("evaluation", 2, loss=2.0)
            log.write("save", 2)
            log.write("checkpoint", 2, stall_seconds=0.0, epoch=None, scores={"loss": 2.0})
    write(empty_store, 2, 3)  # it was committed
    kinds = [record["kind"] for record in read_records(empty_store, RUN)]
    assert kinds == ["save", "save", "evaluation", "save", "checkpoint", "train"]


def test_a_task_that_comes_back_with_other_questions_is_told(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with RunLog(empty_store, RUN, 0) as log:
        log.note_tasks(0, {"own": "1", "other": "2"})
        log.write("save", 1)
    with RunLog(empty_store, RUN, 1) as log:
        log.note_tasks(1, {"own": "1"})
        log.note_tasks(2, {"own": "1", "other": "2"})
        assert caplog.text == ""
        log.note_tasks(3, {"own": "1", "other": "3"})
    assert "the lm-eval tasks other, their data" in caplog.text
    assert [each["by"] for each in read_records(empty_store, RUN) if each["kind"] == ASKED_BY] == [
        {"own": "1", "other": "2"}, {"own": "1", "other": "3"},
    ]  # fmt: skip


def test_tasks_that_changed_after_the_step_of_a_rollback_stay_recorded(empty_store: Store) -> None:
    with RunLog(empty_store, RUN, 0) as log:
        log.note_tasks(0, {"own": "1"})
        log.write("save", 1)
        log.note_tasks(2, {"own": "2"})
        log.rewind(1)
    recorded = [(each["step"], each["by"]) for each in read_records(empty_store, RUN) if each["kind"] == ASKED_BY]
    assert recorded == [(0, {"own": "1"}), (1, {"own": "2"})]


def test_rollbacks_that_a_continued_run_repeats_are_recorded_once(empty_store: Store) -> None:
    def go_back_twice() -> None:
        for attempts in (5, 7):
            log.write("train", 2)
            log.rewind(1)
            log.write(ROLLBACK, 1, attempts=attempts)

    with RunLog(empty_store, RUN, 0) as log:
        log.write("save", 1)
        go_back_twice()
    with RunLog(empty_store, RUN, 1) as log:
        go_back_twice()
        log.write("save", 2)
    with RunLog(empty_store, RUN, 2) as log:
        log.write("train", 3)
    rollbacks = [each["attempts"] for each in read_records(empty_store, RUN) if each["kind"] == ROLLBACK]
    assert rollbacks == [5, 7]


@pytest.mark.parametrize("kept", range(4))
def test_records_that_are_missing_before_the_step_of_a_resume_are_told_from_then_on(
    empty_store: Store, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    write(empty_store, 0, 1, 2, 3, kind="save")
    key = f"{RUN}/metrics.jsonl"
    empty_store.write_bytes(key, b"".join(empty_store.read_bytes(key).splitlines(keepends=True)[:kept]))
    write(empty_store, 3, 4, kind="save")
    assert (f"{key} ends before step 3 was saved: records are missing" in caplog.text) == (kept < 3)
    for resumed_at in (None, 4):
        if resumed_at:
            write(empty_store, resumed_at, 5, kind="save")
        caplog.clear()
        assert steps(empty_store) == [*range(1, kept + 1), 4, *([5] if resumed_at else [])]
        assert (f"{key}: records are missing before record {kept + 2}" in caplog.text) == (kept < 3)


def test_what_is_missing_of_the_step_of_a_resume_itself_is_told(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"{RUN}/metrics.jsonl"
    with RunLog(empty_store, RUN, 0) as log:
        for kind in ("train", "evaluation", "save", "checkpoint"):
            log.write(**{**step_record(10), "kind": kind})
    lines = empty_store.read_bytes(key).splitlines(keepends=True)
    for kept in range(5):
        empty_store.write_bytes(key, b"".join(lines[:kept]))
        caplog.clear()
        write(empty_store, 10, 11)
        assert ("ends before step 10 was saved" in caplog.text) == (kept < 3)
        caplog.clear()
        steps(empty_store)
        assert (f"records are missing before record {kept + 2}" in caplog.text) == (kept < 3)


def test_a_last_record_without_its_end_of_line_is_whole_and_one_cut_short_is_not_warned_of(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(empty_store, 0, 1, 2)
    key = f"{RUN}/metrics.jsonl"
    whole = empty_store.read_bytes(key)
    for end in range(1, len(whole) + 1):
        empty_store.write_bytes(key, whole[:end])
        expected = [1, 2] if end >= len(whole) - 1 else [1] if end >= whole.index(b"\n") else []
        assert steps(empty_store) == expected
    empty_store.write_bytes(key, whole[:-1] + b"\x0b")
    assert steps(empty_store) == [1, 2]
    assert caplog.text == ""


def test_nothing_is_missing_in_tensorboard_at_the_end_of_a_run_in_a_bucket(
    remote_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with RunLog(remote_store, RUN, 0) as log:
        log.write("train", 1, loss=2.5)
        log.publish()
        log.write("train", 2, loss=2.0)
    assert caplog.text == ""
    (name,) = remote_store.names(f"{RUN}/tensorboard")
    assert remote_store.read_bytes(f"{RUN}/tensorboard/{name}").count(b"train/loss") == 2
