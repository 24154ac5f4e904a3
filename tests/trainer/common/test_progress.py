"""Progress: one line for people, one JSON object for a parent process, and nothing for no work."""

import io
import json
from dataclasses import asdict
from threading import Thread

import pytest

from trainer.common.progress import Bar, Progress, Update, as_events, describe, emit, for_people, plain_lines, silent


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("update", "line"),
    [
        (
            Update("train", 120, 300, "step", 100.0, "loss 4.2"),
            "train: 120 of 300 steps (40%), 1.2 steps/s, 150 s left; loss 4.2",
        ),
        (Update("train", 300, 300, "step", 100.0, finished=True), "train: 300 of 300 steps (100%), 3 steps/s"),
        (Update("train", 120, 300, "step", 10.0, start=100), "train: 120 of 300 steps (40%), 2 steps/s, 90 s left"),
        (Update("train", 299, 300, "step", 299.0), "train: 299 of 300 steps (99%), 1 steps/s, 1 s left"),
        (Update("order", 1, 1, "part", 0.5, finished=True), "order: 1 of 1 part (100%), 2 parts/s"),
        (Update("find", 1200, None, "row", 100.0), "find: 1,200 rows, 12 rows/s"),
        (Update("read", 5_000_000, None, "B", 2.0), "read: 4.8 MiB, 2.4 MiB/s"),
        (Update("read", 0, 1_000_000, "B", 2.0), "read: 0 bytes of 976.6 KiB (0%), 0 bytes/s"),
        (Update("read", 0, 0, "B", 0.0), "read: 0 bytes, 0 bytes/s"),
    ],
)
def test_a_line_says_how_far_how_fast_and_how_long(update: Update, line: str) -> None:
    assert describe(update) == line


def work(progress: Progress, total: int | None = 4) -> None:
    with progress.bar("work", total, "step") as bar:
        for done in range(1, 5):
            bar.reach(done, f"note {done}")


def test_every_event_is_one_line_of_json() -> None:
    stream = io.StringIO()
    work(as_events(stream))
    emit(stream, "result", value={"text": "ü\n"})
    *updates, result = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert updates[-1] | {"seconds": 0.0} == {
        "event": "progress", **asdict(Update("work", 4, 4, "step", 0.0, "note 4", finished=True))
    }  # fmt: skip
    assert result == {"event": "result", "value": {"text": "ü\n"}}


def test_plain_lines_are_what_people_read_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    work(for_people(stream))
    assert stream.getvalue().startswith("work: 4 of 4 steps (100%)")
    assert stream.getvalue().endswith("; note 4\n")


@pytest.mark.parametrize("total", [4, None])
def test_a_terminal_shows_one_bar_for_each_title(total: int | None) -> None:
    stream = Terminal()
    work(for_people(stream), total)
    assert "work: " in stream.getvalue()
    assert "note 4" in stream.getvalue()
    assert stream.getvalue().endswith("\n")


def test_every_update_is_shown_where_no_time_must_pass_between_them() -> None:
    stream = io.StringIO()
    work(Progress(plain_lines(stream), interval=0.0))
    assert [line.rsplit("; ")[-1] for line in stream.getvalue().splitlines()] == [
        "note 1",
        "note 2",
        "note 3",
        "note 4",
        "note 4",
    ]


def test_updates_between_intervals_are_counted_but_not_shown() -> None:
    shown: list[Update] = []
    with Progress(shown.append, interval=3600.0).bar("work", 10, "step") as bar:
        for _ in range(10):
            bar.advance(1)
    assert [(update.done, update.finished) for update in shown] == [(10, True)]


def test_work_that_turns_out_to_be_none_is_not_shown() -> None:
    shown: list[Update] = []
    with Progress(shown.append, interval=0.0).bar("work", 10, "step", done=10):
        pass
    assert shown == []


def test_a_failure_shows_how_far_the_work_came() -> None:
    shown: list[Update] = []
    with pytest.raises(ZeroDivisionError), Progress(shown.append, interval=3600.0).bar("work", 10, "step") as bar:
        bar.advance(3)
        _ = 1 / 0
    assert [(update.done, update.finished) for update in shown] == [(3, True)]


def test_no_more_than_the_total_is_shown() -> None:
    shown: list[Update] = []
    bar = Bar("work", 10, "step", shown.append, interval=0.0)
    bar.advance(12)
    assert shown[-1].done == 10
    assert bar.done == 12


def test_threads_count_together() -> None:
    with silent().bar("work", None, "step") as bar:

        def count() -> None:
            for _ in range(1000):
                bar.advance(1)

        threads = [Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bar.done == 4000
