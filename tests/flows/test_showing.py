"""Results as flows print them."""

from pathlib import Path

import pytest

from flows.showing import show_losses
from tests.support import cpu_runtime, held_out_losses, only_run, small_job
from tests.trainer.made import prepare
from trainer.common.progress import silent
from trainer.pipelines.any_kind import train
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
