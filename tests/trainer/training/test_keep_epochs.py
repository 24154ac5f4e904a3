"""`keep_epochs`: how many of the epochs' checkpoints stay."""

from pathlib import Path

import pytest

from tests.support import only_run, small_job
from tests.trainer.training.test_retention import RUN, Keeper, kept
from trainer.common.progress import silent
from trainer.kinds.kind import identify_run
from trainer.kinds.pretraining.preflight import preflight
from trainer.pipelines.any_kind import train
from trainer.records.plans import Plan, PreparedData
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState
from trainer.training.run_repair import repair_finished

PLAN = Plan(global_batch=1, ranks=1, micro_batch=1, accumulation=1, steps_per_epoch=2, total_steps=12, warmup_steps=0)


def epoch_of(step: int) -> int | None:
    return step // 2 if step % 2 == 0 else None


def save_all(store: Store, keep_epochs: int | None, until: int = 12) -> Keeper:
    keeper = Keeper(store, keep_last=1, ended=epoch_of, keep_epochs=keep_epochs)
    for step in range(1, until + 1):
        keeper.save(step, loss=2.0 if step == 4 else 3.0, epoch=epoch_of(step))
    return keeper


@pytest.mark.parametrize(
    ("keep_epochs", "stay"), [(None, [2, 4, 6, 8, 10, 12]), (3, [4, 8, 10, 12]), (1, [4, 12]), (0, [4, 12])]
)
def test_the_newest_epochs_stay_and_the_best_and_the_last(
    keep_epochs: int | None, stay: list[int], empty_store: Store
) -> None:
    save_all(empty_store, keep_epochs)
    assert kept(empty_store) == stay, "the best is that of step 4"
    named = [int(name.split("-")[3]) for name in empty_store.names(f"{RUN}/epochs")]
    assert named == [2, 4, 6, 8, 10, 12][-keep_epochs if keep_epochs else None :][: None if keep_epochs != 0 else 0]


def test_fewer_may_be_kept_from_the_next_start_on(empty_store: Store) -> None:
    state = save_all(empty_store, None, until=8).state
    second = Keeper(empty_store, keep_last=1, ended=epoch_of, keep_epochs=2)
    second.state = TrainState(**state.model_dump())
    second.save(9)
    assert kept(empty_store) == [4, 6, 8, 9]


def test_an_epoch_has_one_pointer_though_another_figure_decides_from_its_end_on(empty_store: Store) -> None:
    state = save_all(empty_store, 2, until=8).state
    assert kept(empty_store) == [4, 6, 8]
    second = Keeper(empty_store, keep_last=1, ended=epoch_of, keep_epochs=2, figure="accuracy")
    second.saver.complete(TrainState(**state.model_dump()))
    assert kept(empty_store) == [4, 6, 8]
    assert empty_store.names(f"{RUN}/epochs") == ["epoch-0003-step-00000006-loss-3.0000", "epoch-0004-step-00000008"]


def test_epochs_of_five_digits_are_newer_than_those_of_four(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=1, ended=lambda step: step, keep_epochs=2)
    for step in (9_998, 9_999, 10_000):
        keeper.save(step, epoch=step)
    assert kept(empty_store) == [9_999, 10_000]


def test_what_was_dropped_is_not_pointed_to_again(empty_store: Store, caplog: pytest.LogCaptureFixture) -> None:
    save_all(empty_store, 1)
    names = empty_store.names(f"{RUN}/epochs")
    repair_finished(empty_store, RUN, lambda: PLAN, "loss", keep_epochs=1)
    assert empty_store.names(f"{RUN}/epochs") == names
    assert "epochs/" not in caplog.text


@pytest.mark.deep
def test_a_run_keeps_as_many_as_its_job_says_and_is_the_same_run(raw: Path, stocked: Path, data: PreparedData) -> None:
    settings = {"training__max_steps": None, "training__epochs": 3, "training__keep_last": 1}
    job = small_job(raw, stocked, **settings, training__keep_epochs=1)
    train(job, silent(), data)
    run = stocked / only_run(stocked)
    assert len(list((run / "epochs").iterdir())) == 1
    assert len(list((run / "checkpoints").iterdir())) <= 2
    assert identify_run(small_job(raw, stocked, **settings), data).key == only_run(stocked)


def test_the_preflight_counts_the_epochs_that_are_kept(raw: Path, stocked: Path) -> None:
    def disk(**changes: int | None) -> int:
        named = {f"training__{name}": value for name, value in changes.items()}
        return preflight(small_job(raw, stocked, **named), silent()).about_disk_bytes

    plan = preflight(small_job(raw, stocked), silent()).plan
    assert plan is not None
    checkpoint = disk(keep_last=3) - disk(keep_last=2)
    five, without = 5 * plan.steps_per_epoch, disk(keep_epochs=0)
    assert disk(max_steps=five) - without == 5 * checkpoint == disk(max_steps=None, epochs=5) - without
    assert disk(max_steps=five, keep_epochs=2) - without == 2 * checkpoint
