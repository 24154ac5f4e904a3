"""A crashed trainer is restarted immediately as long as it advances."""

import logging
from typing import Any

import pytest

from tasks.stage import StageCrashed
from tasks.training import go_on_while_it_advances
from trainer.common.errors import Preempted, RunError
from trainer.records.sealed import write_pointer
from trainer.store.names import LAST
from trainer.store.storage import Store

RUN = "runs/x"
CRASH = StageCrashed("stage train was killed by signal 9: no error was reported")


class Trainer:
    """Saves one step per attempt and crashes; the last attempt may finish."""

    def __init__(self, store: Store, steps: list[int], finishes: bool, ending: Exception = CRASH) -> None:
        self._store, self._steps, self._finishes, self._ending = store, steps, finishes, ending
        self.tries = 0

    def __call__(self) -> dict[str, Any]:
        self.tries += 1
        if self._steps:
            write_pointer(self._store, f"{RUN}/{LAST}", self._steps.pop(0), None)
        elif self._finishes:
            return {"key": "made"}
        raise self._ending


def test_it_goes_on_for_as_long_as_each_try_saves_a_later_step(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(empty_store, list(range(10, 110, 10)), finishes=False)
    with pytest.raises(StageCrashed):
        go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger())
    assert trainer.tries == 11, "ten advanced, and the eleventh did not"
    assert "was killed by signal 9: no error was reported; progressed from step 90 to 100, resuming" in caplog.text


def test_what_it_makes_is_returned(empty_store: Store) -> None:
    trainer = Trainer(empty_store, [10, 20], finishes=True)
    assert go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger()) == {"key": "made"}
    assert trainer.tries == 3


def test_a_stage_that_alone_was_stopped_goes_on_too(empty_store: Store) -> None:
    trainer = Trainer(empty_store, [10, 20], finishes=True, ending=Preempted("asked to stop"))
    assert go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger()) == {"key": "made"}
    assert trainer.tries == 3


def test_nothing_goes_on_once_this_process_is_asked_to_stop(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.training.stop_requested", lambda: True)
    trainer = Trainer(empty_store, [10, 20], finishes=True, ending=Preempted("asked to stop"))
    with pytest.raises(Preempted):
        go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger())
    assert trainer.tries == 1


def test_what_is_wrong_for_another_reason_is_raised_at_once(empty_store: Store) -> None:
    trainer = Trainer(empty_store, [10, 20], finishes=True, ending=RunError("another run has this name"))
    with pytest.raises(RunError):
        go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger())
    assert trainer.tries == 1


def test_a_damaged_pointer_is_no_advance(empty_store: Store) -> None:
    def damage() -> dict[str, str]:
        empty_store.write_bytes(f"{RUN}/{LAST}", b"{half")
        raise CRASH

    write_pointer(empty_store, f"{RUN}/{LAST}", 10, None)
    with pytest.raises(StageCrashed):
        go_on_while_it_advances(damage, empty_store, RUN, logging.getLogger())
