"""What TensorBoard shows of a run, read back as it reads it: curves, hyperparameters, the outcome."""

import copy
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from tests.disks import fill, small_disk
from tests.support import cpu_runtime, records, small_job
from tests.trainer.report_runs import step_record
from tests.trainer.small_jobs import Finished
from trainer.common.progress import silent
from trainer.pipelines.any_kind import train
from trainer.records.plans import PreparedData
from trainer.records.sealed import require_sealed, write_sealed
from trainer.registry.report import OUTCOME, make_report
from trainer.store.names import EVALUATION
from trainer.store.storage import Store
from trainer.training.metrics_writer import RunLog
from trainer.training.tracking import Board

RUN = "runs/tiny"


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes before each file: they are read in the order of their names, which begin with that of their
    making.
    """
    monkeypatch.setattr("time.time", itertools.count(1_800_000_000).__next__)


def read(folder: Path | str) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def points(board: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board.Scalars(tag)]


def hyperparameters(board: EventAccumulator) -> dict[str, Any]:
    content = board.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in found.items()}


def evaluated(step: int, loss: float) -> dict[str, Any]:
    details = {"tokens": 100, "answer_tokens": 50, "text_bytes": 300, "corpora": {"code": loss + 1, "docs": loss - 1}}
    return {
        "kind": "evaluation",
        "step": step,
        "loss": loss,
        **details,
        "corpora_bits_per_byte": {"code": 0.5, "docs": None},
    }


def test_losses_are_shown_by_corpus_and_counts_and_constants_are_not(empty_store: Store) -> None:
    with RunLog(empty_store, RUN, 0, constant={"train/learning_rate"}) as log:
        log.write("schedule", 0, rates=[[0, 0.1]])
        log.write(**evaluated(0, 3.0))
        log.write(**step_record(1))
        log.write("checkpoint", 1, stall_seconds=0.5, epoch=1, scores={"loss": 3.0})
        log.write("commit", 1, checkpoint=1, seconds=0.25)
        log.write(**evaluated(1, 2.0))
    board = read(empty_store.path(f"{RUN}/tensorboard"))
    assert set(board.Tags()["scalars"]) == {
        "train/loss", "train/grad_norm", "train/tokens_per_second", "train/mfu", "train/step_seconds",
        "train/data_wait_seconds", "evaluation/loss", "evaluation/loss/code", "evaluation/loss/docs",
        "evaluation/bits_per_byte/code", "checkpoint/stall_seconds", "commit/seconds",
    }  # fmt: skip
    assert points(board, "evaluation/loss/code") == [(0, 4.0), (1, 3.0)]


@pytest.mark.usefixtures("seconds")
def test_no_point_is_shown_twice_after_a_new_beginning_a_resume_or_a_way_back(empty_store: Store) -> None:
    for resumed_at, steps in ((0, range(4)), (0, range(4)), (2, range(3, 6))):
        with RunLog(empty_store, RUN, resumed_at, {"model": {}, "training": {"seed": 1}}) as log:
            for step in steps:
                log.write(**step_record(step))
                log.write(**evaluated(step, float(step)))
            log.rewind(3)
            for step in (4, 5, 6):
                log.write(**step_record(step))
                log.write(**evaluated(step, float(step)))
    board = read(empty_store.path(f"{RUN}/tensorboard"))
    for tag in board.Tags()["scalars"]:
        assert [step for step, _ in points(board, tag)] == list(range(7)), tag
    assert hyperparameters(board) == {"training.seed": 1.0}


def test_a_whole_run_is_shown_with_its_hyperparameters_and_no_constant_curve(finished: Finished) -> None:
    store = Store(str(finished.store))
    board = read(finished.store / finished.run / "tensorboard")
    shown = hyperparameters(board)
    assert (shown["training.learning_rate"], shown["training.schedule"], shown["model.config.n_layer"]) == (
        1e-3,
        "cosine",
        2,
    )
    assert shown["training.compile"] is False and "training.epochs" not in shown and "store" not in shown
    scalars = set(board.Tags()["scalars"])
    assert {"evaluation/loss/code", "evaluation/loss/docs", "train/learning_rate"} <= scalars
    curves = {tag: {value for _, value in points(board, tag)} for tag in scalars if len(points(board, tag)) > 1}
    assert curves and not [tag for tag, values in curves.items() if len(values) == 1]
    expected = [(record["step"], record["corpora"]["code"]) for record in records(finished.store, "evaluation")]
    assert points(board, "evaluation/loss/code") == [(step, pytest.approx(loss)) for step, loss in expected]
    evaluation = require_sealed(store, f"{finished.run}/{EVALUATION}")
    assert points(board, "final/total/loss") == [(64, pytest.approx(evaluation["total"]["figures"]["loss"]))]
    assert {
        "final/total/bits_per_byte",
        "final/corpora/docs/perplexity",
    } <= scalars and "final/total/tokens" not in scalars
    (said,) = (event.tensor_proto.string_val[0].decode() for event in board.Tensors("samples/1"))
    (sample,) = evaluation["samples"]
    assert f"Prompt:\n\n    {sample['prompt']}\n" in said and sample["continuation"].split("\n")[0] in said


def test_a_fine_tuned_run_shows_its_figures_by_split(tuned: Finished) -> None:
    scalars = read(tuned.store / tuned.run / "tensorboard").Tags()["scalars"]
    assert {"evaluation/accuracy", "final/validation/accuracy"} <= set(scalars)
    assert not {"evaluation/examples", "train/attempts"} & set(scalars)


def test_the_outcome_is_replaced_by_that_of_another_evaluation(finished: Finished, tmp_path: Path) -> None:
    store = Store(str(shutil.copytree(finished.store, tmp_path / "store")))
    place = store.fetch(f"{finished.run}/tensorboard/{OUTCOME}")
    before = place.read_bytes()
    key, evaluation = f"{finished.run}/{EVALUATION}", require_sealed(store, f"{finished.run}/{EVALUATION}")
    other = copy.deepcopy(evaluation)
    other["total"]["figures"]["loss"] = 1.25
    write_sealed(store, key, other)
    assert not make_report(store, finished.run).reused
    assert points(read(place.parent), "final/total/loss") == [(64, 1.25)]
    write_sealed(
        store,
        f"{finished.run}/{EVALUATION}",
        require_sealed(Store(str(finished.store)), f"{finished.run}/{EVALUATION}"),
    )
    assert not make_report(store, finished.run).reused
    assert place.read_bytes() == before, "the same bytes for the same run"


def test_a_learning_rate_that_never_changes_makes_no_curve(raw: Path, stocked: Path, data: PreparedData) -> None:
    cpu_runtime()
    run = train(small_job(raw, stocked, training__schedule="constant", training__warmup_steps=0), silent(), data).key
    board = read(stocked / run / "tensorboard")
    assert "train/loss" in board.Tags()["scalars"] and "train/learning_rate" not in board.Tags()["scalars"]
    assert hyperparameters(board)["training.learning_rate"] == 1e-3


def test_a_run_that_continues_after_the_clock_was_set_back_is_shown_whole(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = None
    for clock, first, last in ((1_800_000_000, 1, 4), (1_799_999_940, 3, 5), (1_799_996_400, 5, 6)):
        monkeypatch.setattr("time.time", lambda clock=clock: clock)
        with RunLog(any_store, RUN, first - 1) as log:
            for step in range(first, last + 1):
                log.write("save", step)
                log.write(**{**step_record(step), "loss": float(clock % 1000 + step)})
        folder = any_store.fetch(f"{RUN}/tensorboard") if any_store.local else folder
    names = sorted(any_store.names(f"{RUN}/tensorboard"))
    assert len(names) == 3 and min(names).startswith("events.out.tfevents.1800000000.")
    if folder is not None:
        assert points(read(folder), "train/loss") == [
            (1, 1.0),
            (2, 2.0),
            (3, 943.0),
            (4, 944.0),
            (5, 405.0),
            (6, 406.0),
        ]


def test_a_full_disk_at_the_start_is_warned_of_once_and_shown_on_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = disk / "tensorboard"
        fill(disk)
        with Board(folder, 0, {"model": {}, "training": {"seed": 1}}) as board:
            for step in range(3):
                board.show(**step_shown(step))
            assert [message.partition(": ")[0] for message in caplog.messages] == [
                "TensorBoard's files can no longer be written"
            ]
            (disk / "filler").unlink()
            for step in range(3, 6):
                board.show(**step_shown(step))
        assert points(read(folder), "train/loss") == [(step, 1.0) for step in range(3, 6)]
    assert len(caplog.messages) == 1


def step_shown(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "values": {"loss": 1.0}}
