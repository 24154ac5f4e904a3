"""A run that is killed or stopped, and continued, ends with the very bytes of one that was not."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.depth import once
from tests.processes import Ended, finish, start_warm
from tests.support import (
    curve,
    final_bytes,
    held_out_losses,
    only_run,
    records,
    small_values,
    steps_recorded,
    write_config,
)
from tests.trainer.small_jobs import LONG, Finished
from trainer.common.errors import EXIT_PREEMPTED

pytestmark = pytest.mark.slow


@pytest.fixture
def values(raw: Path, stocked: Path) -> dict[str, Any]:
    return small_values(raw, stocked, **LONG)


@pytest.fixture
def config(values: dict[str, Any], tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", values)


def reached(store: Path, step: int, delay: float = 0.0) -> Callable[[], bool]:
    """Whether a run has recorded a step; says so after a further delay, so that a kill falls between records as
    well.
    """

    def look() -> bool:
        if steps_recorded(store) < step:
            return False
        time.sleep(delay)
        return True

    return look


def assert_as_uninterrupted(store: Path, finished: Finished) -> None:
    """The weights, the curve and the held-out losses of the run are those of the uninterrupted one."""
    assert only_run(store) == finished.run
    assert curve(store) == curve(finished.store)
    assert held_out_losses(store) == held_out_losses(finished.store)
    assert final_bytes(store) == final_bytes(finished.store)


def test_the_uninterrupted_run_is_a_fair_judge(finished: Finished) -> None:
    plan = (finished.store / finished.run / "plan.json").read_text()
    assert '"accumulation": 2' in plan
    steps = [record["step"] for record in records(finished.store, "train")]
    assert steps == list(range(1, 65))
    epochs = [record["step"] for record in records(finished.store, "checkpoint") if record["epoch"] is not None]
    assert len(epochs) == 1, "the run ends inside its second epoch"
    losses = [loss for _, loss, _, _ in curve(finished.store)]
    assert sum(losses[-8:]) < sum(losses[:8]) - 2.0, "it learns"


@pytest.mark.parametrize("seed", once(1, 2))
def test_a_run_killed_twice_at_random_instants_ends_with_the_same_bytes(
    config: Path, stocked: Path, finished: Finished, seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    for number, step in enumerate([draw.randint(2, 25), draw.randint(28, 55)]):
        running = start_warm(tmp_path / f"killed-{number}", "trainer.__main__", config)
        ended = running.send_when(signal.SIGKILL, reached(stocked, step, draw.uniform(0.0, 0.02)))
        assert ended.status == -signal.SIGKILL
        assert not (stocked / only_run(stocked) / "final").exists()
    (ended,) = finish(tmp_path / "last", config)
    assert f"continuing from {stocked}/" in ended.stderr
    assert_as_uninterrupted(stocked, finished)


def stop(ended: Ended, store: Path) -> int:
    """Check that a run was stopped as it should be; returns the step at which it stands."""
    assert ended.status == EXIT_PREEMPTED, ended.stderr
    assert "Traceback" not in ended.stderr
    step = steps_recorded(store)
    assert f"asked to stop: saved at step {step} of 64; run it again to continue" in ended.stderr
    folders = sorted((store / only_run(store) / "checkpoints").iterdir())
    assert folders[-1].name == f"step-{step:08d}"
    assert (folders[-1] / "manifest.json").exists()
    return step


@pytest.mark.parametrize("signum", once(signal.SIGTERM, signal.SIGINT))
def test_a_run_that_is_asked_to_stop_saves_and_continues_exactly(
    values: dict[str, Any], stocked: Path, finished: Finished, signum: signal.Signals, tmp_path: Path
) -> None:
    values["training"]["save_every"] = None
    config = write_config(tmp_path / "job.yaml", values)
    running = start_warm(tmp_path / "stopped", "trainer.__main__", config)
    step = stop(running.send_when(signum, reached(stocked, 11)), stocked)
    (ended,) = finish(tmp_path / "last", config)
    assert f"at step {step} of 64" in ended.stderr
    assert_as_uninterrupted(stocked, finished)


def test_a_run_that_is_stopped_where_it_has_just_saved_saves_once(config: Path, stocked: Path, tmp_path: Path) -> None:
    running = start_warm(tmp_path / "stopped", "trainer.__main__", config)
    stop(running.send_when(signal.SIGTERM, reached(stocked, 5)), stocked)
    saved = [record["step"] for record in records(stocked, "checkpoint")]
    assert len(saved) == len(set(saved))


@pytest.mark.deep
def test_a_run_killed_before_its_first_checkpoint_begins_again_with_a_clean_record(
    values: dict[str, Any], stocked: Path, finished: Finished, tmp_path: Path
) -> None:
    values["training"]["save_every"] = None
    config = write_config(tmp_path / "job.yaml", values)
    running = start_warm(tmp_path / "killed", "trainer.__main__", config)
    running.send_when(signal.SIGKILL, reached(stocked, 3))
    assert not (stocked / only_run(stocked) / "checkpoints").exists()
    finish(tmp_path / "last", config)
    assert_as_uninterrupted(stocked, finished)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_and_ends_with_the_same_bytes(
    config: Path, stocked: Path, finished: Finished, tmp_path: Path
) -> None:
    run = stocked / finished.run
    shutil.copytree(finished.store / finished.run, run)
    shutil.rmtree(run / "final")
    newest = max((run / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:1000])
    (ended,) = finish(tmp_path / "said", config)
    assert f"{newest}/model.safetensors has 1000 bytes" in ended.stderr
    assert "at step 63 of 64" in ended.stderr
    assert_as_uninterrupted(stocked, finished)
