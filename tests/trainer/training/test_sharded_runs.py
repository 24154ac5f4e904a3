"""What else is done with runs of models that are divided among ranks: stopped, rolled back, forked, fine-tuned,
begun.
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.processes import wait_until
from tests.support import curve, only_run, records, small_job, small_values, steps_recorded, write_config
from tests.trainer.labelled_pairs import finetune_job, finetune_values
from tests.trainer.small_jobs import OFTEN
from tests.trainer.training.sharded_runs import (
    FSDP,
    LLAMA,
    SHORT,
    WHOLE,
    apart,
    copied,
    cut_back,
    final_weights,
    finish,
    start,
)
from tests.trainer.training.test_recovery import skip_in_a_row
from trainer.common.progress import silent
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.records.plans import PreparedData
from trainer.store.names import EVALUATION, FINAL
from trainer.training.runtime import Runtime

pytestmark = pytest.mark.slow

ALONE = {**SHORT, "run": "one", "training__sharding": "fsdp"}
"""A sharded run of a name, in this process."""

ROUNDING = 2e-6
"""Of weights, absolute, after a few steps: sums in another order."""


def weights(store: Path, run: str) -> dict[str, torch.Tensor]:
    return load_file(store / run / FINAL / "model.safetensors")


@pytest.mark.deep
def test_ranks_that_are_asked_to_stop_save_their_parts_and_continue_exactly(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path
) -> None:
    values = small_values(
        raw, Path("unset"), training__max_steps=40, training__sharding="fsdp", training__evaluate_every=5
    )
    config = write_config(tmp_path / "job.yaml", values)
    stopped, undisturbed = (copied(prepared[0], tmp_path / name) for name in ("stopped", "undisturbed"))
    running = start(tmp_path / "said", 2, config, f"store={stopped}")
    wait_until(lambda: steps_recorded(stopped) >= 2 or any(rank.status() is not None for rank in running))
    running[1].send(signal.SIGTERM)
    ended = [rank.wait() for rank in running]
    assert [rank.status for rank in ended] == [75, 75], ended
    finish(tmp_path / "again", config, stopped, 2)
    finish(tmp_path / "undisturbed-said", config, undisturbed, 2)
    assert apart(final_weights(stopped), final_weights(undisturbed)) == 0.0
    assert curve(stopped) == curve(undisturbed)


def test_training_goes_back_to_the_parts_of_the_last_commit(
    raw: Path, stocked: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_in_a_row(monkeypatch, 3, 4)
    whole = copied(stocked, tmp_path / "whole")
    train(small_job(raw, stocked, **ALONE), silent())
    train(small_job(raw, whole, **{**ALONE, "training__sharding": "none"}), silent())
    assert [record["step"] for record in records(stocked, "rollback")] == [2]
    assert apart(final_weights(stocked), final_weights(whole)) < ROUNDING


def test_a_run_is_forked_from_the_parts_of_another(raw: Path, stocked: Path, runtime: Runtime) -> None:
    train(small_job(raw, stocked, **ALONE), silent())
    changed = {**ALONE, "training__learning_rate": 2e-3, "resume": "fork"}
    fork = train(small_job(raw, stocked, **changed), silent())
    last, begun = (records(stocked, "evaluation", key) for key in ("runs/one", fork.key))
    assert (begun[0]["step"], begun[0]["loss"]) == (0, last[-1]["loss"])


def test_a_finished_model_is_measured_by_ranks_that_hold_a_part_of_it_each(
    raw: Path, stocked: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(raw, stocked, **ALONE)
    train(job, silent())
    measured = evaluation_of(job, "runs/one")
    assert measured.sharding == "fsdp"
    whole = evaluate_checkpoint(measured.model_copy(update={"sharding": "none"}), silent())
    (stocked / "runs/one" / EVALUATION).unlink()
    loading = "trainer.kinds.pretraining.evaluate.load_model"
    monkeypatch.setattr(loading, lambda folder: pytest.fail("it was loaded whole"))
    assert evaluate_checkpoint(measured, silent()) == whole


@pytest.mark.deep
def test_the_best_checkpoint_is_published_from_its_parts(raw: Path, stocked: Path, runtime: Runtime) -> None:
    changes = {**ALONE, "training__final": "best", "training__learning_rate": 0.3, "training__evaluate_every": 1}
    train(small_job(raw, stocked, **changes), silent())
    best = json.loads((stocked / "runs/one/checkpoint-best").read_text())["step"]
    assert best < 4
    (part,) = (stocked / f"runs/one/checkpoints/step-{best:08d}").glob("model-part-00000-of-00001-*.safetensors")
    assert apart(weights(stocked, "runs/one"), load_file(part)) == 0.0


def pretrain(raw: Path, store: Path, folder: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    """A pretrained folder, saved with these options, and the values of a job that begins with it."""
    config = write_config(folder / "first.yaml", small_values(raw, store, **{**SHORT, **options.pop("changes", {})}))
    finish(folder / "said", config, store, 1)
    final, model = store / only_run(store) / FINAL, folder / "model"
    AutoModelForCausalLM.from_pretrained(final).save_pretrained(model, **options)
    (model / "tokenizer.json").write_bytes((final / "tokenizer.json").read_bytes())
    values = small_values(raw, Path("unset"), **{**SHORT, "name": "second"})
    values["model"] = {"pretrained": str(model)}
    values["data"]["tokenizer"] = {"path": str(model)}
    return model, values


@pytest.mark.deep
def test_a_pretrained_folder_in_several_files_is_read_by_rows_and_trained_as_a_whole_one(
    raw: Path, stocked: Path, tmp_path: Path
) -> None:
    model, values = pretrain(raw, stocked, tmp_path, max_shard_size="30KB")
    assert len(list(model.glob("*.safetensors"))) > 1
    second = write_config(tmp_path / "second.yaml", values)
    stores = [tmp_path / name for name in ("whole", "sharded")]
    finish(tmp_path / "said-whole", second, stores[0], 2)
    ended = finish(tmp_path / "said-sharded", second, stores[1], 2, FSDP)
    assert WHOLE not in ended[0].stderr
    assert apart(final_weights(stores[1]), final_weights(stores[0])) < ROUNDING


@pytest.mark.deep
def test_a_pretrained_folder_that_is_not_tied_as_it_says_is_trained_as_without_sharding(
    raw: Path, stocked: Path, tmp_path: Path
) -> None:
    model, values = pretrain(raw, stocked, tmp_path, changes={"model__config": LLAMA})
    said = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**said, "tie_word_embeddings": True}))
    second = write_config(tmp_path / "second.yaml", values)
    stores = [tmp_path / name for name in ("whole", "sharded")]
    finish(tmp_path / "said-whole", second, stores[0], 2)
    ended = finish(tmp_path / "said-sharded", second, stores[1], 2, FSDP)
    assert WHOLE in ended[0].stderr
    cut_back(stores[1])
    finish(tmp_path / "said-again", second, stores[1], 2, FSDP)
    assert {"lm_head.weight", "model.embed_tokens.weight"} < final_weights(stores[1]).keys()
    assert apart(final_weights(stores[1]), final_weights(stores[0])) < ROUNDING


@pytest.mark.deep
def test_a_classifier_is_fine_tuned_from_parts_and_divided_itself(
    raw: Path, stocked: Path, pairs: Path, tmp_path: Path, runtime: Runtime
) -> None:
    train(small_job(raw, stocked, **ALONE), silent())
    begun_from = "runs/one/checkpoint-last"
    changes = {**OFTEN, "training__epochs": 1, "training__save_every": None, "training__micro_batch": 2}
    whole = train(finetune_job(pairs, stocked, begun_from, **changes, run="whole"), silent())
    values = finetune_values(pairs, stocked, begun_from, **changes, run="sharded", training__sharding="fsdp")
    config = write_config(tmp_path / "job.yaml", values)
    finish(tmp_path / "said", config, stocked, 2)
    assert apart(weights(stocked, "runs/sharded"), weights(stocked, whole.key)) < 1e-4
    losses = [[r["loss"] for r in records(stocked, "train", run)] for run in (whole.key, "runs/sharded")]
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
    scores = [records(stocked, "evaluation", run)[-1] for run in (whole.key, "runs/sharded")]
    assert scores[1]["loss"] == pytest.approx(scores[0]["loss"], abs=2e-4)
    record = stocked / "runs/sharded" / EVALUATION
    divided = json.loads(record.read_text())
    record.unlink()
    alone = finetune_job(pairs, stocked, begun_from, **changes, run="sharded")
    evaluate_run(alone, "runs/sharded", silent())
    assert json.loads(record.read_text()) == divided, "and so are its predictions"
