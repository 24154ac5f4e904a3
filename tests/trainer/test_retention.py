"""Which checkpoints stay, and what points to them."""

from pathlib import Path

import pytest
import torch

from tests.support import SMALL_MODEL
from trainer.checkpoint import Criterion, TrainState
from trainer.config import ModelConfig
from trainer.errors import StorageError
from trainer.models import build_model, resolve_config
from trainer.saver import Saver
from trainer.snapshot import Snapshot
from trainer.storage import Store
from trainer.tokenizer import TokenizerInfo

RUN = "runs/tiny"


class Keeper:
    """Saves as the loop does, with a validation loss at some steps."""

    def __init__(self, store: Store, keep_last: int) -> None:
        options = ModelConfig(config={**SMALL_MODEL, "n_layer": 1, "n_embd": 8})
        config = resolve_config(options, TokenizerInfo(json="", sha256="", eos_id=0, max_id=9), 8)
        self.model = build_model(options, config, 0)
        self.saver = Saver(store, RUN, self.model, [], "0123456789abcdef", keep_last)
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
        snapshot = Snapshot(state.model_copy(), weights, {"moment": torch.zeros(1)}, {}, epoch)
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


def test_pointers_name_the_newest_the_best_and_the_epochs(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1, 5.0)
    keeper.save(2, 3.0, epoch=1)
    keeper.save(3, 4.0)
    keeper.save(4, epoch=2)
    last, best = (empty_store.read_json(f"{RUN}/checkpoint-{name}") for name in ("last", "best"))
    assert last == {"checkpoint": "checkpoints/step-00000004", "step": 4, "scores": {"loss": 4.0}}
    assert best == {"checkpoint": "checkpoints/step-00000002", "step": 2, "scores": {"loss": 3.0}}
    assert empty_store.names(f"{RUN}/epochs") == [
        "epoch-0001-step-00000002-loss-3.0000",
        "epoch-0002-step-00000004-loss-4.0000",
    ]
    first = empty_store.read_json(f"{RUN}/epochs/epoch-0001-step-00000002-loss-3.0000")
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


def test_an_error_of_the_background_writer_is_raised_at_the_next_save_or_at_the_end(tmp_path: Path) -> None:
    keeper = Keeper(Store(str(tmp_path / "store")), keep_last=1)
    (tmp_path / "store" / "runs").mkdir(parents=True)
    (tmp_path / "store" / "runs" / "tiny").write_text("a file where the run's folder should be")
    with pytest.raises(StorageError, match="runs/tiny"):
        keeper.save(1)
