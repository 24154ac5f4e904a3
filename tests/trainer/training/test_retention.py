"""Which checkpoints stay, and what points to them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import SMALL_MODEL
from tests.tiny_models import new_model
from trainer.common import transient
from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.records.evaluations import Criterion
from trainer.records.sealed import read_pointer, read_sealed, write_pointer
from trainer.store.manifest import Manifest
from trainer.store.storage import Store
from trainer.training import saver
from trainer.training.checkpoint import EndedEpoch, TrainState, find_checkpoint
from trainer.training.run_repair import find_best
from trainer.training.saver import Saver, SaverOptions, Snapshot

RUN = "runs/tiny"

SETTINGS = {"optimizer": [{"params": ["w"], "lr": 0.1}], "schedule": {}, "scaler": None}
"""The least that a checkpoint says of optimizer and schedule."""


class Keeper:
    """Saves as the loop does, with a validation loss at some steps."""

    def __init__(
        self, store: Store, keep_last: int, ended: EndedEpoch = lambda step: None, keep_epochs: int | None = None,
        figure: str = "loss",
    ) -> None:  # fmt: skip
        self.model = new_model({**SMALL_MODEL, "n_layer": 1, "n_embd": 8}, 8, 9)
        options = SaverOptions([], "0123456789abcdef", keep_last, figure, ended=ended, keep_epochs=keep_epochs)
        self.saver = Saver(store, RUN, self.model, options)
        self.state = TrainState()

    def save(self, step: int, loss: float | None = None, epoch: int | None = None) -> None:
        self.submit(step, loss, epoch)
        self.saver.drain()

    def submit(self, step: int, loss: float | None = None, epoch: int | None = None) -> None:
        state = self.state
        state.step = state.attempts = step
        if loss is not None:
            state.judge({"loss": loss}, Criterion("loss", greater_is_better=False))
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        weights["transformer.wte.weight"] = weights["lm_head.weight"]
        snapshot = Snapshot(state.model_copy(), weights, {"w/moment": torch.zeros(1)}, SETTINGS, epoch)
        self.saver.save(lambda copies: snapshot)


def kept(store: Store) -> list[int]:
    return [int(name.removeprefix("step-")) for name in store.names(f"{RUN}/checkpoints")]


def test_the_last_ones_the_best_and_each_epochs_stay_and_others_go(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=2)
    losses = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.5}
    seen = []
    for step in range(1, 10):
        keeper.save(step, losses.get(step), epoch=step // 3 if step % 3 == 0 else None)
        seen.append(kept(empty_store))
    assert seen == [
        [1], [1, 2], [2, 3], [3, 4], [3, 4, 5], [3, 4, 5, 6], [3, 4, 6, 7], [3, 4, 6, 7, 8], [3, 4, 6, 8, 9],
    ]  # fmt: skip


def test_an_equal_score_is_not_better_and_one_that_is_not_finite_never() -> None:
    state = TrainState()
    for step, loss in enumerate((3.0, 3.0, math.nan, -math.inf), start=1):
        state.step = step
        state.judge({"loss": loss}, Criterion("loss", greater_is_better=False))
        assert (state.best_step, state.best_score, state.worse) == (1, 3.0, step - 1)


def test_pointers_name_the_newest_the_best_and_the_epochs(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1, 5.0)
    keeper.save(2, 3.0, epoch=1)
    keeper.save(3, 4.0)
    keeper.save(4, epoch=2)
    last, best = (read_sealed(empty_store, f"{RUN}/checkpoint-{name}") for name in ("last", "best"))
    assert last == {"checkpoint": "checkpoints/step-00000004", "step": 4, "scores": {"loss": 4.0}}
    assert best == {"checkpoint": "checkpoints/step-00000002", "step": 2, "scores": {"loss": 3.0}}
    assert empty_store.names(f"{RUN}/epochs") == [
        "epoch-0001-step-00000002-loss-3.0000",
        "epoch-0002-step-00000004-loss-4.0000",
    ]
    first = read_sealed(empty_store, f"{RUN}/epochs/epoch-0001-step-00000002-loss-3.0000")
    assert first["checkpoint"] == "checkpoints/step-00000002"
    assert kept(empty_store) == [2, 4]


@pytest.mark.parametrize("keep_last", [1, 3])
def test_without_validation_and_epochs_only_the_last_stay(empty_store: Store, keep_last: int) -> None:
    keeper = Keeper(empty_store, keep_last)
    for step in range(1, 6):
        keeper.save(step)
    assert kept(empty_store) == list(range(6 - keep_last, 6))
    assert not empty_store.exists(f"{RUN}/checkpoint-best")
    assert not empty_store.exists(f"{RUN}/epochs")


def test_a_new_process_goes_on_keeping_what_an_earlier_one_kept(empty_store: Store) -> None:
    first = Keeper(empty_store, keep_last=2)
    for step, loss in enumerate([5.0, 3.0, 4.0, 4.0], start=1):
        first.save(step, loss)
    second = Keeper(empty_store, keep_last=2)
    second.state = first.state.model_copy()
    second.save(5, 4.0)
    assert kept(empty_store) == [2, 4, 5]


def test_nothing_stays_in_the_staging_folder(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1)
    keeper.save(2)
    assert empty_store.names(".staging") == []


def test_what_is_committed_is_not_written_again_when_what_comes_after_fails(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.1)
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1)
    written, publish, point = [], saver.publish_folder, saver.write_pointer

    def publish_once(store: Store, folder: Path, key: str, *rest: Any) -> Manifest:
        written.append(key)
        return publish(store, folder, key, *rest)

    def point_on_second(store: Store, key: str, *rest: Any) -> None:
        written.append(key)
        if written.count(key) == 1:
            raise StorageError("the pointer is refused", transient=True)
        point(store, key, *rest)

    def refuse(store: Store, key: str, first: str | None = None) -> None:
        raise StorageError("the folder is busy")

    monkeypatch.setattr(saver, "publish_folder", publish_once)
    monkeypatch.setattr(saver, "write_pointer", point_on_second)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "delete", refuse)
        keeper.save(2)
    assert written == [f"{RUN}/checkpoints/step-00000002", f"{RUN}/checkpoint-last", f"{RUN}/checkpoint-last"]
    assert find_checkpoint(empty_store, RUN) == "checkpoints/step-00000002"
    assert kept(empty_store) == [1, 2]
    assert "are not deleted yet: the folder is busy" in caplog.text
    keeper.save(3)
    assert kept(empty_store) == [3]


def test_pointers_that_could_not_be_written_in_their_time_are_written_with_the_next(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1, 5.0)

    def refuse(store: Store, key: str, *rest: Any) -> None:
        raise StorageError("every pointer is refused")

    with monkeypatch.context() as patch:
        patch.setattr(saver, "write_pointer", refuse)
        with pytest.raises(StorageError, match="every pointer is refused"):
            keeper.save(2, 3.0, epoch=1)
    keeper.save(3, 4.0)
    last, best = (read_pointer(empty_store, f"{RUN}/checkpoint-{name}") for name in ("last", "best"))
    assert (last and last.step, best and best.step) == (3, 2)
    assert empty_store.names(f"{RUN}/epochs") == ["epoch-0001-step-00000002-loss-3.0000"]
    assert kept(empty_store) == [2, 3]


def test_a_run_that_another_process_has_taken_over_is_not_pointed_into(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.1)
    keeper, point, lost = Keeper(empty_store, keep_last=1), saver.write_pointer, []
    keeper.save(1)

    def check() -> None:
        if lost:
            raise RunError("taken over")

    def away_once(store: Store, key: str, *rest: Any) -> None:
        if not lost:
            lost.append(True)  # meanwhile another process takes the run
            raise StorageError("the store is away", transient=True)
        point(store, key, *rest)

    monkeypatch.setattr(saver, "write_pointer", away_once)
    monkeypatch.setattr(keeper.saver, "_require_lease", check)
    with pytest.raises(RunError, match="taken over"):
        keeper.save(2)
    last = read_pointer(empty_store, f"{RUN}/checkpoint-last")
    assert last is not None and last.step == 1
    assert kept(empty_store) == [1, 2]


def test_what_was_never_committed_is_none_of_the_last_and_goes(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=2)
    keeper.save(1)
    keeper.save(2)
    assert empty_store.local is not None
    upload = empty_store.local / RUN / "checkpoints" / "step-00000003"
    upload.mkdir()
    (upload / "model.safetensors").write_bytes(b"half")
    keeper.saver.complete(keeper.state)
    assert kept(empty_store) == [1, 2]
    keeper.save(4)
    assert kept(empty_store) == [2, 4]


def test_an_epoch_whose_scores_lack_the_figure_that_is_asked_for_now_is_named_without_it(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(2, 3.0)
    options = SaverOptions([], "0123456789abcdef", 1, "f1", ended=lambda step: 1)
    Saver(empty_store, RUN, keeper.model, options).complete(keeper.state)
    assert empty_store.names(f"{RUN}/epochs") == ["epoch-0001-step-00000002"]


def spoil(store: Store, pointer: str, damage: str) -> None:
    """Delete a pointer, change one bit of it, or put another run's in its place."""
    key = f"{RUN}/{pointer}"
    intact = store.read_bytes(key)
    if damage == "gone":
        store.delete(key)
    elif damage == "one bit":
        store.write_bytes(key, intact.replace(b"0000002", b"0000003"))
    else:
        write_pointer(store, "runs/other/pointer", 3, {"loss": 3.0})
        store.write_bytes(key, store.read_bytes("runs/other/pointer"))


@pytest.mark.parametrize("damage", ["gone", "one bit", "another run's"])
@pytest.mark.parametrize("pointer", ["checkpoint-best", "epochs/epoch-0001-step-00000002-loss-3.0000"])
def test_a_checkpoint_whose_pointer_is_lost_stays_and_is_pointed_to_again(
    empty_store: Store, pointer: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    epoch = 1 if "epoch" in pointer else None
    keeper = Keeper(empty_store, keep_last=1, ended=lambda step: epoch if step == 2 else None)
    for step, loss in ((1, 5.0), (2, 3.0), (3, 4.0)):
        keeper.save(step, loss, epoch=epoch if step == 2 else None)
    if epoch:
        keeper.save(4, 2.0)  # so that the epoch's is not the best
    before = empty_store.read_bytes(f"{RUN}/{pointer}")
    assert caplog.text == ""
    spoil(empty_store, pointer, damage)
    keeper.save(5, 4.0)
    assert 2 in kept(empty_store)
    assert empty_store.read_bytes(f"{RUN}/{pointer}") == before
    assert f"{RUN}/{pointer} is {'missing' if damage == 'gone' else 'damaged'}" in caplog.text


def test_steps_of_nine_digits_are_after_those_of_eight(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=2)
    for step in (99_999_998, 99_999_999, 100_000_000):
        keeper.save(step)
    assert find_checkpoint(empty_store, RUN) == "checkpoints/step-100000000"
    assert sorted(kept(empty_store)) == [99_999_999, 100_000_000]


@pytest.mark.parametrize("damage", ["gone", "one bit", "another run's"])
def test_the_best_checkpoint_is_known_without_its_pointer(empty_store: Store, damage: str) -> None:
    keeper = Keeper(empty_store, keep_last=3)
    for step, loss in ((1, 5.0), (2, 3.0), (3, 4.0)):
        keeper.save(step, loss)
    before = empty_store.read_bytes(f"{RUN}/checkpoint-best")
    spoil(empty_store, "checkpoint-best", damage)
    assert find_best(empty_store, RUN, keeper.state) == 2
    assert empty_store.read_bytes(f"{RUN}/checkpoint-best") == before
    weights = empty_store.fetch(f"{RUN}/checkpoints/step-00000002/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        ArtifactError, match=r"step 2, is not intact: .*model\.safetensors has .*restore it from a copy"
    ):
        find_best(empty_store, RUN, keeper.state)
    empty_store.delete(f"{RUN}/checkpoints/step-00000002")
    with pytest.raises(
        ArtifactError, match=r"the best checkpoint of .*, of step 2, is not intact: .*missing.* restore"
    ):
        find_best(empty_store, RUN, keeper.state)
    assert find_best(empty_store, RUN, TrainState()) is None, "nothing was measured"


def test_where_the_best_could_not_be_saved_the_best_that_was_saved_is_taken(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1, 5.0)
    keeper.state.step = 2
    keeper.state.judge({"loss": 3.0}, Criterion("loss", greater_is_better=False))
    keeper.save(3, 4.0)
    assert kept(empty_store) == [1, 3]
    assert find_best(empty_store, RUN, keeper.state) == 1
    assert "step-00000002, the best checkpoint, was never saved: using the best that was, step 1" in caplog.text


def test_a_saver_that_has_lost_its_run_meanwhile_deletes_nothing(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be suspended until its successor has saved further steps, which it then lists."""
    keeper, listed, listing = Keeper(empty_store, keep_last=1), list[int](), saver.saved_steps
    keeper.save(1)

    def suspended(store: Store, run: str) -> list[int]:
        listed.extend(listing(store, run))
        return listing(store, run)

    def check() -> None:
        if listed:
            raise RunError("taken over by another process")

    monkeypatch.setattr(saver, "saved_steps", suspended)
    monkeypatch.setattr(keeper.saver, "_require_lease", check)
    with pytest.raises(RunError, match="taken over"):
        keeper.save(2)
    assert listed == kept(empty_store) == [1, 2]


def test_a_score_is_not_compared_with_one_of_another_meaning() -> None:
    """As of f1 of another class: a run may continue with another one if the choice does not affect its result."""
    one, other = (Criterion("f1", greater_is_better=True, meaning=each) for each in ("of pos", "of neg"))
    state = TrainState(step=1)
    state.judge({"f1": 0.9}, one)
    state.step = 2
    assert state.worse_with({"f1": 0.5}, one) == 1 and state.worse_with({"f1": 0.5}, other) == 0
    state.judge({"f1": 0.5}, other)
    assert (state.best_step, state.best_score) == (2, 0.5)
    before = TrainState(best_figure="f1", best_score=0.9, best_step=1)  # of a checkpoint that records the name alone
    assert before.worse_with({"f1": 0.5}, other) == 1
