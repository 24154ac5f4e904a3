"""A trainer that crashes goes on at once as long as it advances."""

import logging
from typing import Any

import pytest

from tasks.stage import StageCrashed
from tasks.training import go_on_while_it_advances
from trainer.records.sealed import write_pointer
from trainer.store.names import LAST
from trainer.store.storage import Store

RUN = "runs/x"


class Trainer:
    """Saves one step after another, each in a try that crashes; the last finishes, if it may."""

    def __init__(self, store: Store, steps: list[int], finishes: bool) -> None:
        self._store, self._steps, self._finishes = store, steps, finishes
        self.tries = 0

    def __call__(self) -> dict[str, Any]:
        self.tries += 1
        if self._steps:
            write_pointer(self._store, f"{RUN}/{LAST}", self._steps.pop(0), None)
        elif self._finishes:
            return {"key": "made"}
        raise StageCrashed("stage train was ended by signal 9: it said nothing")


def test_it_goes_on_for_as_long_as_each_try_saves_a_later_step(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(empty_store, list(range(10, 110, 10)), finishes=False)
    with pytest.raises(StageCrashed):
        go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger())
    assert trainer.tries == 11, "ten advanced, and the eleventh did not"
    assert "was ended by signal 9: it said nothing; it came from step 90 to 100, and goes on" in caplog.text


def test_what_it_makes_is_returned(empty_store: Store) -> None:
    trainer = Trainer(empty_store, [10, 20], finishes=True)
    assert go_on_while_it_advances(trainer, empty_store, RUN, logging.getLogger()) == {"key": "made"}
    assert trainer.tries == 3
