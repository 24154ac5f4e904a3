"""Results as flows print them."""

import math
from pathlib import Path

import pytest

from flows.showing import show_finetuned, show_losses
from tests.support import cpu_runtime, held_out_losses, only_run, sealed_lines, small_job
from tests.trainer.made import prepare
from tests.trainer.results import a_result
from trainer.common.progress import silent
from trainer.config.labelled import FinetuneJob
from trainer.pipelines.any_kind import train
from trainer.records.results import Outcome
from trainer.store.storage import Store


def test_the_loss_after_training_is_that_of_the_final_model(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job(
        raw, tmp_path, training__max_steps=60, training__learning_rate=5e-2, training__evaluate_every=5,
        training__early_stopping=2, training__final="best",
    )  # fmt: skip
    cpu_runtime()
    train(job, silent(), prepare(job.preparation(), silent()))
    losses = [loss for _, loss in held_out_losses(tmp_path)]
    assert min(losses) < losses[-1], "the final model is an earlier checkpoint"
    capsys.readouterr()
    show_losses(Store(job.store), only_run(tmp_path))
    assert capsys.readouterr().out.startswith(f"validation loss {losses[0]:.3f} -> {min(losses):.3f} (")


def shown(store: Store, capsys: pytest.CaptureFixture[str], *evaluations: dict[str, float]) -> str:
    """What is printed of a run with these evaluations in training."""
    records = [{"kind": "evaluation", "step": 10 * place, **each} for place, each in enumerate(evaluations)]
    store.write_bytes("runs/tiny/metrics.jsonl", sealed_lines("runs/tiny/metrics.jsonl", records))
    show_losses(store, "runs/tiny")
    return capsys.readouterr().out


def test_losses_of_different_text_are_not_compared(empty_store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"loss": 4.0, "tokens": 90}
    assert shown(empty_store, capsys, before, {"loss": 3.0, "tokens": 90}) == "validation loss 4.000 -> 3.000 (-25%)\n"
    assert shown(empty_store, capsys, before, {"loss": 3.0, "tokens": 900}) == ""
    assert shown(empty_store, capsys, before) == ""


@pytest.mark.parametrize("loss", [0.0, math.nan, math.inf])
def test_a_change_that_is_no_number_is_left_out(
    loss: float, empty_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"validation loss {loss:.3f} -> 3.000\n" if loss != math.inf else "validation loss inf -> 3.000 (-100%)\n"
    assert shown(empty_store, capsys, {"loss": loss}, {"loss": 3.0}) == said


def test_a_figure_of_another_class_is_not_shown_as_the_one_before_training(
    empty_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"kind": "evaluation", "step": 0, "loss": 0.7, "accuracy": 0.5, "f1": 0.25, "positive": "no"}]
    empty_store.write_bytes("runs/a/metrics.jsonl", sealed_lines("runs/a/metrics.jsonl", records))
    job = FinetuneJob.model_validate(
        {
            "store": empty_store.url,
            "data": {"name": "pairs", "source": "jsonl", "train": ["/data/train.jsonl"], "text_columns": ["text"]},
            "model": {"pretrained": "bert"}, "training": {"max_steps": 20},
        }
    )  # fmt: skip
    figures = {"validation": {"accuracy": 0.75, "f1": 0.875}}
    for positive, begin in (("no", "0.2500 -> "), ("yes", "")):
        result = a_result(figures, positive={"f1": positive})
        show_finetuned(job, Outcome(run="runs/a", evaluation=result, report="runs/a/report.html"))
        lines = capsys.readouterr().out.splitlines()
        assert f"validation f1 of {positive!r} {begin}0.8750" in lines
        assert "validation accuracy 0.5000 -> 0.7500" in lines
