"""Checkpoints whose checksums are right and whose contents cannot be: passed over as damaged ones are, or refused."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError
from trainer.models.causal import load_model
from trainer.store.manifest import digest_file, read_manifest, write_manifest
from trainer.store.names import CHECKPOINT_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import find_checkpoint
from trainer.training.restoring import restore

Change = Callable[[dict[str, Any]], object]


def reseal(store: Store, key: str, **details: Any) -> None:
    """Let a checkpoint's manifest list its files as they are now, with other details."""
    manifest = read_manifest(store, key, CHECKPOINT_KIND)
    assert manifest is not None and store.local is not None
    files = [digest_file(store.local / key / record.name) for record in manifest.files]
    write_manifest(store, key, manifest.model_copy(update={"files": files, "details": {**manifest.details, **details}}))


def forge_state(store: Store, key: str, change: Change) -> None:
    assert store.local is not None
    path = store.local / key / "state.json"
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    reseal(store, key)


def forge_tensors(store: Store, key: str, file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    assert store.local is not None
    path = store.local / key / file
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    reseal(store, key)


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> tuple[Store, str, str, str]:
    """The finished run in a store of the test's own, the key of its newest checkpoint, and the name of the one
    before.
    """
    own = finished.copy(tmp_path)
    before, newest = sorted(path.name for path in (own.folder / "checkpoints").iterdir())[-2:]
    return Store(str(own.store)), own.run, f"{own.run}/checkpoints/{newest}", f"checkpoints/{before}"


IMPOSSIBLE: dict[str, Change] = {
    "a negative step": lambda saved: saved["state"].update(step=-1),
    "another step than the folder's": lambda saved: saved["state"].update(step=3),
    "a step beyond all batches": lambda saved: saved["state"].update(attempts=1),
    "a step that is no whole number": lambda saved: saved["state"].update(step=64.0),
    "a step that is text": lambda saved: saved["state"].update(step="64"),
    "a step that is true": lambda saved: saved["state"].update(step=True),
    "a best step to come": lambda saved: saved["state"].update(best_step=10**9),
    "a best score that is no number": lambda saved: saved["state"].update(best_score=float("nan")),
    "a negative count": lambda saved: saved["state"].update(worse=-1),
    "other scores than the manifest": lambda saved: saved["state"].update(scores={"loss": 0.0}),
    "no settings": lambda saved: saved.pop("settings"),
    "no state": lambda saved: saved.pop("state"),
    "settings that nobody knows": lambda saved: saved["settings"].update(more=1),
    "no optimizer": lambda saved: saved["settings"].pop("optimizer"),
    "an optimizer without groups": lambda saved: saved["settings"].update(optimizer=[]),
    "a learning rate that is no number": lambda saved: saved["settings"]["optimizer"][0].update(lr=float("nan")),
    "a negative learning rate": lambda saved: saved["settings"]["optimizer"][0].update(lr=-1.0),
    "a schedule that is a list": lambda saved: saved["settings"].update(schedule=[]),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_sealed_state_that_is_impossible_is_damage(
    copied: tuple[Store, str, str, str], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, run, newest, before = copied
    forge_state(store, newest, IMPOSSIBLE[what])
    with caplog.at_level(logging.WARNING, logger="trainer.training.checkpoint"):
        assert find_checkpoint(store, run) == before
    (warned,) = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert f"{newest}/state.json" in warned and before in warned
    assert not store.exists(newest) and store.exists(newest.replace("step-", "damaged-step-") + "-0/state.json")


def test_a_step_beyond_the_plan_is_damage(copied: tuple[Store, str, str, str]) -> None:
    store, run, newest, before = copied
    assert find_checkpoint(store, run, total_steps=64) == newest.removeprefix(f"{run}/")
    assert find_checkpoint(store, run, total_steps=63) == before
    assert not store.exists(newest)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "7", "[" * 100_000])
def test_a_state_that_is_no_record_is_damage(copied: tuple[Store, str, str, str], text: str) -> None:
    store, run, newest, before = copied
    assert store.local is not None
    (store.local / newest / "state.json").write_text(text)
    reseal(store, newest)
    assert find_checkpoint(store, run) == before


def test_a_manifest_that_names_another_step_is_damage(copied: tuple[Store, str, str, str]) -> None:
    store, run, newest, before = copied
    reseal(store, newest, step="64")
    assert find_checkpoint(store, run) == before


def test_a_run_with_nothing_but_impossible_states_is_refused(copied: tuple[Store, str, str, str]) -> None:
    store, run, _, _ = copied
    for name in store.names(f"{run}/checkpoints"):
        forge_state(store, f"{run}/checkpoints/{name}", lambda saved: saved["state"].update(step=-1))
    with pytest.raises(ArtifactError, match=r"no checkpoint of .* is intact: .*state.json is damaged: state.step"):
        find_checkpoint(store, run)


MISFITS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "a moment of no parameter": lambda tensors: tensors.update({"model.nothing/exp_avg": torch.zeros(1)}),
    "a name without a parameter": lambda tensors: tensors.update(exp_avg=torch.zeros(1)),
    "a moment of another shape": lambda tensors: tensors.update(
        {"model.transformer.wte.weight/exp_avg": torch.zeros(3, 5)}
    ),
    "a moment of more dimensions": lambda tensors: tensors.update(
        {"model.transformer.ln_f.bias/exp_avg": torch.zeros(1, 1)}
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_moments_that_are_not_of_the_model_are_damage(copied: tuple[Store, str, str, str], what: str) -> None:
    store, run, newest, before = copied
    forge_tensors(store, newest, "optimizer.safetensors", MISFITS[what])
    assert find_checkpoint(store, run) == before


def test_what_does_not_fit_is_refused_when_it_is_restored(copied: tuple[Store, str, str, str], runtime: object) -> None:
    from tests.trainer.training.test_checkpoint import Learner

    store, _, newest, _ = copied
    assert store.local is not None
    folder = store.local / newest
    learner = Learner(load_model(folder), runtime)
    forge_state(store, newest, lambda saved: saved["settings"]["optimizer"][0]["params"].append("model.nothing"))
    with pytest.raises(ArtifactError, match=r"do not fit the trained model"):
        restore(folder, learner.objective, learner.optimizer, learner.schedule, None)
    forge_state(store, newest, lambda saved: saved["settings"]["optimizer"][0]["params"].pop())
    forge_state(store, newest, lambda saved: saved["settings"]["schedule"].update(last_epoch=7))
    with pytest.raises(ArtifactError, match=r"the schedule is at step 7, training at step 64"):
        restore(folder, learner.objective, learner.optimizer, learner.schedule, None)
