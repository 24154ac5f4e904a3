"""What goes wrong while training goes on: saves that fail, gradients that are not finite; and runs forked from
others.
"""

import errno
import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tests.support import curve, final_bytes, read_rows, records, small_job
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.small_jobs import Finished
from tests.trainer.training.test_retention import Keeper, kept
from trainer.common import transient
from trainer.common.errors import Preempted, RunError, StorageError
from trainer.common.progress import silent
from trainer.common.transient import exit_status
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.kinds.pretraining.preflight import preflight
from trainer.pipelines.any_kind import train
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.report import make_report
from trainer.store.manifest import content_of, require_manifest
from trainer.store.storage import Store
from trainer.training import loop, saver
from trainer.training.runtime import Runtime
from trainer.training.step import Outcome

RUN = "runs/tiny"


def block(store: Store) -> Path:
    """Put a file where the checkpoints belong, so that saving fails as it does on any refusing disk."""
    assert store.local is not None
    path = store.local / RUN / "checkpoints"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    return path


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.0)


def test_a_save_that_is_refused_is_reported_and_does_not_stop_training(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, obstacle = Keeper(empty_store, keep_last=2), block(empty_store)
    keeper.submit(1)
    keeper.submit(2)
    keeper.submit(3)
    with pytest.raises(StorageError):
        keeper.saver.drain()
    assert "tried again" not in caplog.text
    assert sum("could not be saved, training continues" in record.getMessage() for record in caplog.records) == 2
    obstacle.unlink()
    keeper.submit(4)
    commit = keeper.saver.drain()
    assert commit is not None and commit.step == 4 and commit.seconds > 0
    assert kept(empty_store) == [4]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), "cannot write .*step-00000001: .*Stale file handle"),
        (SafetensorError("Error while serializing: I/O error: (os error 116)"), r"cannot write .*: .*\(os error 116\)"),
        (
            SafetensorError("Error while serializing: I/O error: (os error 122)"),
            "Disk quota exceeded: it takes more than the [0-9,]+ bytes that were free",
        ),
    ],
    ids=["the system's", "a library's", "a library's about space"],
)
def test_a_save_that_meets_what_passes_is_tried_again(
    error: Exception, told: str, empty_store: Store, no_pauses: None, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    errors, write = [error], saver.save_file

    def write_on_second(*arguments: Any) -> None:
        if errors:
            raise errors.pop()
        write(*arguments)

    monkeypatch.setattr(saver, "save_file", write_on_second)
    keeper = Keeper(empty_store, keep_last=1)
    keeper.save(1)
    assert kept(empty_store) == [1]
    saved = load_file(empty_store.fetch(f"{RUN}/checkpoints/step-00000001/model.safetensors"))
    assert saved and all(torch.equal(keeper.model.state_dict()[name], tensor) for name, tensor in saved.items())
    (said,) = [record.getMessage() for record in caplog.records if "step 1 is not saved yet" in record.getMessage()]
    assert re.search(told, said), said


def test_a_save_that_meets_what_does_not_pass_in_time_ends_training_with_that(
    empty_store: Store, no_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay_full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv(transient.PATIENCE, "0.5")
    monkeypatch.setattr(saver, "save_file", stay_full)
    keeper = Keeper(empty_store, keep_last=1)
    keeper.submit(1)
    with pytest.raises(StorageError, match="No space left on device") as failure:
        keeper.submit(2)
    assert failure.value.transient
    assert exit_status(failure.value) == 75
    assert kept(empty_store) == []


def test_three_saves_in_a_row_that_are_refused_stop_training(empty_store: Store) -> None:
    keeper = Keeper(empty_store, keep_last=2)
    block(empty_store)
    for step in (1, 2, 3):
        keeper.submit(step)
    with pytest.raises(StorageError, match=r"3 checkpoints in a row could not be saved: cannot .*checkpoints"):
        keeper.submit(4)


def test_a_commit_and_its_time_are_recorded(finished: Finished) -> None:
    commits = records(finished.store, "commit")
    saved = [record["step"] for record in records(finished.store, "checkpoint")]
    assert [commit["checkpoint"] for commit in commits] == saved
    assert all(commit["seconds"] > 0 and commit["step"] >= commit["checkpoint"] for commit in commits)


def skip_in_a_row(
    monkeypatch: pytest.MonkeyPatch, *attempts: int, skipped: Callable[[int], None] = lambda attempt: None
) -> None:
    """Let gradients be not finite in as many attempted steps as make training go back to the last commit."""
    monkeypatch.setattr(loop, "MAX_SKIPS", len(attempts))
    step, seed, begun = loop.train_step, loop.seed_everything, [0]

    def note_attempt(number: int, attempt: int, rank: int) -> None:
        begun.append(attempt)
        seed(number, attempt, rank)

    def skip(*arguments: Any) -> Outcome:
        if begun[-1] not in attempts:
            return step(*arguments)
        skipped(begun[-1])
        return Outcome(torch.tensor(0.0), torch.tensor(torch.nan), skipped=True)

    monkeypatch.setattr(loop, "seed_everything", note_attempt)
    monkeypatch.setattr(loop, "train_step", skip)


@pytest.fixture
def poisoned(pairs: Path, tmp_path: Path) -> dict[str, Any]:
    """Changes for a regression with one target so large that the gradients of its batch are not finite."""
    rows = read_rows(pairs / "train.jsonl")[:40]
    lines = [json.dumps({**row, "label": 3e38 if number == 7 else 0.5}) for number, row in enumerate(rows)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "validation.jsonl").write_text("\n".join(lines[20:30]) + "\n")
    return {
        "data__train": [str(tmp_path / "train.jsonl")], "data__validation": [str(tmp_path / "validation.jsonl")],
        "data__test": None, "data__task": "regression", "data__classes": None, "training__save_every": 1,
        "training__early_stopping": None,
    }  # fmt: skip


def test_a_batch_whose_gradients_are_not_finite_is_skipped_and_counted(
    pairs: Path, pretrained: Path, tmp_path: Path, poisoned: dict[str, Any], runtime: Runtime
) -> None:
    run = train(finetune_job(pairs, tmp_path / "store", pretrained, **poisoned, training__epochs=3), silent())
    steps = records(tmp_path / "store", "train", run.key)
    assert [record["step"] for record in steps] == list(range(1, 16))
    assert steps[-1]["attempts"] in (15 + 3, 15 + 4), "once an epoch, and the steps that made up for it are of a fourth"
    weights = load_file(tmp_path / "store" / run.key / "final" / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert all(abs(record["loss"]) < 100 for record in steps), "what is skipped is in no mean"


def test_too_many_in_a_row_go_back_to_the_last_commit_past_that_data_and_then_stop_with_its_samples(
    pairs: Path, pretrained: Path, tmp_path: Path, poisoned: dict[str, Any], runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(loop, "MAX_SKIPS", 1)
    poisoned["training__save_every"] = 2
    store = tmp_path / "store"
    job = finetune_job(
        pairs, store, pretrained, **poisoned, training__epochs=6, run="bad", training__learning_rate=1e-4
    )
    with pytest.raises(RunError, match=r"training has diverged: after step \d+ .* \(samples \d+ to \d+\)"):
        train(job, silent())
    went_back = records(store, "rollback", "runs/bad")
    assert len(went_back) == loop.MAX_ROLLBACKS
    assert sum("restoring the last checkpoint" in record.getMessage() for record in caplog.records) == 3
    steps = [record["step"] for record in records(store, "train", "runs/bad")]
    assert steps == sorted(set(steps)), "what was gone back over is recorded once"
    assert all(record["step"] % 2 == 0 or record["step"] % 5 == 0 for record in went_back)


@pytest.mark.deep
def test_asked_to_stop_while_batches_are_skipped_it_goes_back_first_and_continues_exactly(
    raw: Path, stocked: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = [False]

    def skipped(attempt: int) -> None:
        if stops[0] and attempt == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    skip_in_a_row(monkeypatch, 5, 6, skipped=skipped)
    undisturbed = Path(shutil.copytree(stocked, tmp_path / "undisturbed"))
    changes = {"run": "one", "training__max_steps": 9, "training__save_every": 4, "training__evaluate_every": None}
    train(small_job(raw, undisturbed, **changes), silent())
    stops[0] = True
    with pytest.raises(Preempted, match="asked to stop: saved at step 4 of 9"):
        train(small_job(raw, stocked, **changes), silent())
    stops[0] = False
    train(small_job(raw, stocked, **changes), silent())
    assert len(records(undisturbed, "rollback")) == len(records(stocked, "rollback")) == 1
    assert final_bytes(stocked) == final_bytes(undisturbed)
    assert curve(stocked) == curve(undisturbed)


def stop_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Have this process asked to stop in a step of training."""
    record = loop.record_step

    def record_and_stop(session: loop.Session, outcome: Outcome) -> None:
        record(session, outcome)
        if session.state.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(loop, "record_step", record_and_stop)


def test_asked_to_stop_in_its_last_step_it_leaves_the_publishing_to_the_next_start(
    raw: Path, stocked: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 6)
    job = small_job(raw, stocked, run="one")
    with pytest.raises(Preempted, match="asked to stop: saved at step 6 of 6"):
        train(job, silent())
    assert not (stocked / "runs" / "one" / "final").exists()
    assert not train(job, silent()).reused
    assert (stocked / "runs" / "one" / "final" / "manifest.json").exists()


def test_divergence_before_any_checkpoint_is_an_error_that_says_so(
    pairs: Path,
    pretrained: Path,
    tmp_path: Path,
    poisoned: dict[str, Any],
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "MAX_SKIPS", 1)
    job = finetune_job(
        pairs, tmp_path / "store", pretrained, **{**poisoned, "training__save_every": None}, training__epochs=1
    )
    with pytest.raises(
        RunError, match="diverged before its first checkpoint: the gradients of 1 batches were not finite"
    ):
        train(job, silent())


@pytest.mark.deep
def test_a_run_is_forked_with_other_settings_from_the_weights_of_its_newest_checkpoint(
    raw: Path, stocked: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    first = train(small_job(raw, stocked, run="one"), silent())
    changed = {"run": "one", "training__learning_rate": 2e-3, "training__max_steps": 8}
    with pytest.raises(RunError, match=r"training.learning_rate: 0.001 -> 0.002.*resume: fork"):
        train(small_job(raw, stocked, **changed), silent())
    caplog.set_level(logging.INFO)
    fork = train(small_job(raw, stocked, **changed, resume="fork"), silent())
    assert fork.key.startswith("runs/one-fork-")
    place, names = "runs/one/checkpoints/step-00000006", ["model.safetensors"]
    manifest = require_manifest(Store(str(stocked)), place, "checkpoint", "")
    assert json.loads((stocked / fork.key / "config.json").read_text())["fork"] == {
        "run": "runs/one", "checkpoint": "checkpoints/step-00000006",
        "fingerprint": manifest.fingerprint,
        "weights": content_of(each for each in manifest.files if each.name in names),
    }  # fmt: skip
    assert "starting from the weights of runs/one/checkpoints/step-00000006" in caplog.text
    last, start = records(stocked, "evaluation", first.key)[-1], records(stocked, "evaluation", fork.key)[0]
    assert (start["step"], start["loss"]) == (0, last["loss"])
    assert records(stocked, "train", fork.key)[-1]["step"] == 8
    assert train(small_job(raw, stocked, **changed, resume="fork"), silent()).reused
    assert train(small_job(raw, stocked, run="one", resume="fork"), silent()).key == first.key, "nothing differs"
    shutil.rmtree(stocked / first.key)
    shutil.rmtree(stocked / fork.key / "final")
    caplog.clear()
    assert train(small_job(raw, stocked, **changed, resume="fork"), silent()).key == fork.key, (
        "it needs the other no more"
    )
    assert f"continuing from {stocked}/{fork.key}/checkpoints/step-00000008" in caplog.text
    with pytest.raises(RunError, match=r"there is no .*/runs/one to fork; set another `run`"):
        train(small_job(raw, stocked, run="one", training__seed=7, resume="fork"), silent())
    assert not (stocked / first.key).exists()


def test_a_fork_is_not_reused_after_its_original_run_was_replaced_by_another(
    raw: Path, stocked: Path, runtime: Runtime
) -> None:
    origin, fork = (
        small_job(raw, stocked, run="one"),
        small_job(raw, stocked, run="one", resume="fork", training__seed=7),
    )
    train(origin, silent())
    first = train(fork, silent())
    assert train(fork, silent()).reused
    record = read_sealed(store := Store(str(stocked)), f"{first.key}/config.json")
    shutil.rmtree(stocked / "runs/one")
    assert train(fork, silent()).reused, "it no longer needs the other"
    train(small_job(raw, stocked, run="one", training__seed=3), silent())
    with pytest.raises(RunError, match=r"was forked from another run that was in .*/runs/one before; remove .*-fork-"):
        train(fork, silent())
    older = {name: value for name, value in record["fork"].items() if name in ("run", "checkpoint")}
    write_sealed(store, f"{first.key}/config.json", {**record, "fork": older})
    assert train(fork, silent()).reused, "an older file does not tell"


def test_a_fork_does_not_start_from_a_checkpoint_with_other_weights(raw: Path, stocked: Path, runtime: Runtime) -> None:
    train(small_job(raw, stocked, run="one"), silent())
    fork = small_job(raw, stocked, run="one", resume="fork", training__seed=7)
    first = train(fork, silent())
    for gone in ("final", "checkpoints"):
        shutil.rmtree(stocked / first.key / gone)
    (stocked / first.key / "checkpoint-last").unlink()
    record = read_sealed(store := Store(str(stocked)), f"{first.key}/config.json")
    write_sealed(store, f"{first.key}/config.json", {**record, "fork": {**record["fork"], "weights": "0" * 64}})
    with pytest.raises(RunError, match=r"step-00000006 has other weights than when .*-fork-.* was forked from it"):
        train(fork, silent())


def test_a_fork_without_a_checkpoint_whose_origin_has_deleted_its_first_is_refused_with_what_to_do(
    raw: Path, stocked: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = {"run": "one", "training__save_every": 2, "training__keep_last": 1}
    forked = {**origin, "resume": "fork", "training__learning_rate": 2e-3}
    with monkeypatch.context() as stopped, pytest.raises(Preempted):
        stop_at(stopped, 2)
        train(small_job(raw, stocked, **origin), silent())
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):  # before its first save
        killed.setattr(loop, "record_step", interrupt)
        train(small_job(raw, stocked, **forked), silent())
    train(small_job(raw, stocked, **origin), silent())
    assert not (stocked / "runs/one/checkpoints/step-00000002").exists()
    with pytest.raises(RunError, match=r"one/checkpoints/step-00000002, whose .*Remove .*-fork-\w+ to fork the newest"):
        train(small_job(raw, stocked, **forked), silent())
    (fork,) = (stocked / "runs").glob("one-fork-*")
    shutil.rmtree(fork)
    train(small_job(raw, stocked, **forked), silent())
    assert json.loads((fork / "config.json").read_text())["fork"]["checkpoint"] == "checkpoints/step-00000006"


def interrupt(session: loop.Session, outcome: Outcome) -> None:
    raise KeyboardInterrupt


def test_a_fork_of_nothing_is_refused_before_any_work(raw: Path, pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    for check, job in (
        (preflight, small_job(raw, tmp_path / "store", run="one", resume="fork")),
        (labelled_preflight, finetune_job(pairs, tmp_path / "store", pretrained, run="one", resume="fork")),
    ):
        with pytest.raises(RunError, match=r"there is no .*/runs/one to fork;"):
            check(job, silent())  # type: ignore[operator]


def test_a_fork_keeps_its_model_and_its_page_and_card_tell_what_it_began_with(
    raw: Path, stocked: Path, runtime: Runtime
) -> None:
    train(small_job(raw, stocked, run="one"), silent())
    fork = train(small_job(raw, stocked, run="one", resume="fork", training__seed=7), silent())
    page = stocked / make_report(Store(str(stocked)), fork.key).key
    assert "trained further from runs/one/checkpoints/step-00000006 on" in (page.parent / "final/README.md").read_text()
    assert "pretrained runs/one/checkpoints/step-00000006" in page.read_text()
    with pytest.raises(RunError, match=r"cannot be forked with another model: model.config.n_layer: 2 -> 3"):
        train(small_job(raw, stocked, run="one", resume="fork", model__config__n_layer=3), silent())
