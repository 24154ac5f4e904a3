"""Training as a whole: what a run leaves behind, what it reports, and the ways to set it up."""

import gc
import itertools
import json
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tests.processes import cores, start_warm
from tests.support import (
    NO_DROPOUT,
    SMALL_MODEL,
    cpu_runtime,
    curve,
    final_bytes,
    forget_after,
    held_out_losses,
    records,
    small_job,
    small_values,
    write_config,
)
from tests.trainer.small_jobs import Finished
from trainer.common.errors import RunError
from trainer.common.progress import silent
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.kinds.pretraining.workload import Pretraining
from trainer.models.taken_tokenizer import find_files
from trainer.pipelines.any_kind import train
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.curves import with_planned_rates
from trainer.registry.facts import read_facts
from trainer.registry.lineage import trace
from trainer.registry.promotion import promote
from trainer.registry.report import render_page, report_content
from trainer.store.manifest import read_manifest
from trainer.store.names import CHECKPOINT_KIND, FINAL
from trainer.store.storage import Store
from trainer.training.identity import recorded
from trainer.training.loop import Session, evaluate_now
from trainer.training.metrics_reader import read_records

PLAIN: dict[str, Any] = {"model__config": {**SMALL_MODEL, **NO_DROPOUT}}


def train_here(raw: Path, store: Path | str, data: PreparedData, **changes: Any) -> str:
    """Train in this process; returns the run's key."""
    cpu_runtime()
    with cores(1):
        return train(small_job(raw, store, **changes), silent(), data).key


def test_a_run_leaves_its_configuration_plan_and_surroundings(raw: Path, stocked: Path, data: PreparedData) -> None:
    run = stocked / train_here(raw, stocked, data)
    assert json.loads((run / "config.json").read_text())["job"] == recorded(small_job(raw, stocked))
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["total_steps"], plan["global_batch"], plan["ranks"]) == (6, 8, 1)
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"] == version("torch")
    assert (environment["ranks"], environment["precision"]) == (1, "fp32")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000006"]


def test_the_surroundings_of_the_steps_before_a_continuation_are_kept(
    raw: Path, stocked: Path, data: PreparedData
) -> None:
    key = train_here(raw, stocked, data, training__save_every=2)
    store, described = Store(str(stocked)), f"{key}/environment.json"

    def continued_at(step: int, **other: Any) -> dict[str, Any]:
        write_sealed(store, described, {**(read_sealed(store, described) or {}), **other})
        forget_after(stocked / key, step)
        assert train_here(raw, stocked, data, training__save_every=2) == key
        return read_sealed(store, described) or {}

    whole = read_sealed(store, described)
    assert whole is not None and continued_at(4) == whole, "in the same surroundings there is nothing to say"
    assert continued_at(4, python="2.7") == {**whole, "until step 4": f"python: 2.7 -> {whole['python']}"}
    told = f"python: 2.7 -> {whole['python']}; ranks: 2 -> 1"
    assert continued_at(4, ranks=2) == {**whole, "until step 4": told}


def test_a_plan_that_is_not_the_expected_one_is_refused(raw: Path, stocked: Path, data: PreparedData) -> None:
    job = small_job(raw, stocked)
    plan = make_plan(job.training, shard_manifests(Store(str(stocked)), data), 1)
    cpu_runtime()
    with cores(1), pytest.raises(RunError, match=r"steps_per_epoch: \d+ -> \d+"):
        train(job, silent(), data, plan.model_copy(update={"steps_per_epoch": 1}))


def test_a_record_is_the_mean_of_the_steps_since_the_one_before(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path
) -> None:
    each, grouped = (Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("each", "grouped"))
    train_here(raw, each, prepared[1], training__max_steps=7)
    train_here(raw, grouped, prepared[1], training__max_steps=7, training__log_every=3)
    losses = [loss for _, loss, _, _ in curve(each)]
    means = [(3, sum(losses[:3]) / 3), (6, sum(losses[3:6]) / 3), (7, losses[6])]
    assert [(step, loss) for step, loss, _, _ in curve(grouped)] == [
        (step, pytest.approx(mean)) for step, mean in means
    ]
    assert [(r["attempts"], r["steps"]) for r in records(grouped, "train")] == [(3, 3), (6, 3), (7, 1)]
    assert final_bytes(each) == final_bytes(grouped), "watching changes nothing"


def test_the_evaluation_before_the_first_step_does_not_count_as_time_of_steps(
    raw: Path, stocked: Path, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, later = time.perf_counter, 0.0

    def slowly(session: Session, *options: Any, **named: Any) -> None:
        nonlocal later
        evaluate_now(session, *options, **named)
        later += 0.0 if session.state.step else 1e6

    monkeypatch.setattr(time, "perf_counter", lambda: real() + later)
    monkeypatch.setattr("trainer.training.loop.evaluate_now", slowly)
    train_here(raw, stocked, data, training__max_steps=2)
    first, _ = records(stocked, "train")
    assert first["step_seconds"] < 1e6


def test_steps_since_the_last_record_are_recorded_if_training_ends_early(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path
) -> None:
    each, grouped = (Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("each", "grouped"))
    # A greater loss counts as better, so the second evaluation, at step 6, ends training.
    changes = {"training__early_stopping": 1, "training__evaluate_every": 3, "evaluation__greater_is_better": True}
    train_here(raw, each, prepared[1], training__max_steps=20, **changes)
    train_here(raw, grouped, prepared[1], training__max_steps=20, training__log_every=4, **changes)
    losses = [loss for _, loss, _, _ in curve(each)]
    assert len(losses) == 6, "one record of the last step, which is due anyway"
    means = [pytest.approx(sum(part) / len(part)) for part in (losses[:4], losses[4:])]
    assert [(r["step"], r["loss"], r["steps"]) for r in records(grouped, "train")] == [
        (4, means[0], 4),
        (6, means[1], 2),
    ]


def test_records_tell_speed_and_learning_rate(raw: Path, stocked: Path, data: PreparedData) -> None:
    train_here(raw, stocked, data, training__schedule="constant_with_warmup")
    found = records(stocked, "train")
    assert [record["learning_rate"] for record in found] == pytest.approx([5e-4, *[1e-3] * 5])
    for record in found:
        assert record["tokens_per_second"] == pytest.approx(256 / record["step_seconds"])
        assert record["mfu"] > 0
        assert record["data_wait_seconds"] >= 0


def test_a_warm_up_between_two_records_is_in_the_report(raw: Path, stocked: Path, data: PreparedData) -> None:
    run = train_here(raw, stocked, data, training__log_every=6, training__warmup_steps=4)
    facts = read_facts(Store(str(stocked)), run)
    assert [record["step"] for record in facts.of_kind("train")] == [6]
    rates = [(r["step"], r["learning_rate"]) for r in with_planned_rates(facts.records) if "learning_rate" in r]
    assert rates[:5] == [(step, pytest.approx(1e-3 * step / 4)) for step in range(5)]
    assert rates[-1] == (6, pytest.approx(0.0, abs=1e-12))
    axes = [
        line for line in render_page(facts, report_content(facts)).split("<h3>") if line.startswith("Learning rate")
    ]
    assert axes[0].count("<use") >= len(rates), "each point is marked"


def test_a_checkpoint_has_the_figures_of_its_own_step_or_none(raw: Path, stocked: Path, data: PreparedData) -> None:
    changes = {"training__save_every": 1, "training__evaluate_every": 2, "training__keep_last": 6}
    store, run = Store(str(stocked)), train_here(raw, stocked, data, **changes)
    measured = {each["step"]: each["loss"] for each in read_records(store, run) if each["kind"] == "evaluation"}
    for step in range(1, 7):
        manifest = read_manifest(store, f"{run}/checkpoints/step-{step:08d}", CHECKPOINT_KIND)
        assert manifest is not None
        assert (manifest.details["scores"] or {}).get("loss") == (measured[step] if step % 2 == 0 else None)


@pytest.mark.parametrize("learns", [True, False])
def test_epochs_set_the_number_of_steps_and_keep_a_checkpoint_each(
    raw: Path, stocked: Path, data: PreparedData, learns: bool
) -> None:
    changes: dict[str, Any] = {"training__max_steps": None, "training__epochs": 3, "training__global_batch": 64}
    if not learns:  # then the second epoch's checkpoint is not kept as the best
        changes |= {"training__optimizer": "sgd", "training__learning_rate": 1e-12}
    run = train_here(raw, stocked, data, **changes)
    plan = json.loads((stocked / run / "plan.json").read_text())
    assert plan["steps_per_epoch"] == -(-plan["windows"] // 64)
    assert plan["total_steps"] == 3 * plan["steps_per_epoch"] == curve(stocked)[-1][0]
    losses = dict(held_out_losses(stocked))
    steps = [number * plan["steps_per_epoch"] for number in (1, 2, 3)]
    assert list(losses) == [0, *steps]
    assert (len(set(losses.values())) > 1) == learns
    names = sorted(path.name for path in (stocked / run / "epochs").iterdir())
    assert names == [f"epoch-{n:04d}-step-{step:08d}-loss-{losses[step]:.4f}" for n, step in enumerate(steps, start=1)]
    best = json.loads((stocked / run / "checkpoint-best").read_text())
    assert best["scores"]["loss"] == min(losses[step] for step in steps)


@pytest.mark.deep
def test_without_held_out_text_a_run_trains_all_the_same(raw: Path, tmp_path: Path) -> None:
    job = small_job(raw, tmp_path / "store", data__validation_fraction=0.0)
    cpu_runtime()
    with cores(1):
        run = train(job, silent()).key
    assert records(tmp_path / "store", "evaluation") == []
    assert len(curve(tmp_path / "store")) == 6
    assert not (tmp_path / "store" / run / "checkpoint-best").exists()


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"training__gradient_checkpointing": True}, 1e-6),
        ({"model__attention": "eager"}, 1e-4),
        ({"training__precision": "bf16"}, 0.05),
    ],
    ids=["gradient checkpointing", "eager attention", "bf16"],
)
def test_another_way_to_compute_trains_about_the_same(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path, changes: dict[str, Any], tolerance: float
) -> None:
    plain, other = (Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("plain", "other"))
    train_here(raw, plain, prepared[1], **PLAIN)
    cpu_runtime(changes.get("training__precision", "fp32"))
    with cores(1):
        train(small_job(raw, other, **PLAIN, **changes), silent(), prepared[1])
    for (_, expected, _, _), (_, loss, _, _) in itertools.zip_longest(curve(plain), curve(other)):
        assert loss == pytest.approx(expected, abs=tolerance)


def test_a_deterministic_run_is_the_same_and_takes_no_algorithm_that_is_not(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    plain, other = (Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("plain", "other"))
    train_here(raw, plain, prepared[1], **PLAIN)
    try:
        train_here(raw, other, prepared[1], **PLAIN, training__deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert final_bytes(other) == final_bytes(plain)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.torch.distributed.reduce_op:FutureWarning")  # looked at like all else
def test_what_was_trained_is_let_go_at_once(raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path) -> None:
    def alive() -> set[int]:
        return {id(found) for found in gc.get_objects() if isinstance(found, PreTrainedModel | torch.optim.Optimizer)}

    store = Path(shutil.copytree(prepared[0], tmp_path / "store"))
    gc.collect()
    before = alive()
    gc.disable()
    try:
        train_here(raw, store, prepared[1], **PLAIN)
        assert alive() <= before, "without waiting for the garbage collector, as an evaluation may follow"
    finally:
        gc.enable()


@pytest.mark.long
@pytest.mark.slow
def test_a_compiled_run_trains_about_the_same(raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path) -> None:
    plain, other = (Path(shutil.copytree(prepared[0], tmp_path / name)) for name in ("plain", "other"))
    shallow = {"model__config": {**SMALL_MODEL, **NO_DROPOUT, "n_layer": 1}, "training__max_steps": 3}
    train_here(raw, plain, prepared[1], **shallow)
    config = write_config(tmp_path / "job.yaml", small_values(raw, other, **shallow, training__compile=True))
    ended = start_warm(tmp_path / "said", "trainer.__main__", config).wait(280)
    assert ended.status == 0, ended.stderr
    for (_, expected, _, _), (_, loss, _, _) in itertools.zip_longest(curve(plain), curve(other)):
        assert loss == pytest.approx(expected, abs=1e-3)
    (run,) = (other / "runs").iterdir()
    names = load_file(run / FINAL / "model.safetensors").keys()
    assert names == load_file(plain / "runs" / run.name / FINAL / "model.safetensors").keys()


def test_a_pretrained_model_is_trained_further(
    raw: Path, stocked: Path, data: PreparedData, finished: Finished, pretrained: Path
) -> None:
    train_here(raw, stocked, data, model={"pretrained": str(pretrained)})
    (_, first), *_, (_, last) = held_out_losses(stocked)
    assert first == pytest.approx(held_out_losses(finished.store)[-1][1], abs=1e-5), "it begins where the other ended"
    assert last < first


@pytest.mark.deep
def test_a_run_of_the_store_is_trained_further_with_its_tokenizer_as_a_copy_of_it_is(
    raw: Path, any_store: Store, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, first = Store(str(finished.store)), finished.run
    for file in store.walk():
        any_store.write_bytes(file.key, store.read_bytes(file.key))
    copy = shutil.copytree(finished.folder / FINAL, tmp_path / "copy")

    def further(place: str, model: str) -> str:
        job = small_job(raw, place, name="further", model={"pretrained": model}, data__tokenizer={"path": model})
        cpu_runtime()
        with cores(1):
            return train(job, silent()).key

    run = further(any_store.url, first)
    other = further(str(tmp_path / "other"), str(copy))
    assert any_store.read_bytes(f"{run}/{FINAL}/model.safetensors") == final_bytes(tmp_path / "other")
    inputs = [any_store.read_json(f"{run}/config.json")["inputs"][role] for role in ("model", "tokenizer taken from")]
    assert [each["key"] for each in inputs] == [first, first]
    assert other == run, "the same content gives the same run"
    with monkeypatch.context() as patched:
        patched.setattr(Store, "fetch_folder", lambda *_: pytest.fail("a tokenizer needs no weights"))
        assert {"tokenizer.json", "config.json"} <= find_files(first, any_store).keys()
    traced = trace(any_store, run)
    assert (traced["base"]["key"], traced["base"]["name"]) == (f"{first}/{FINAL}", first)
    assert [each["run"] for each in traced["ancestors"]] == [first]


def test_a_run_is_trained_from_the_model_that_named_it_though_another_becomes_the_champion_meanwhile(
    raw: Path, stocked: Path, data: PreparedData, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(stocked))
    shutil.copytree(finished.folder, stocked / finished.run)
    other = train_here(raw, stocked, data, name="other", training__seed=1)
    promote(store, "best", finished.run, {}, "first")
    opened = Pretraining.__init__

    def overtaken(*arguments: Any) -> None:
        promote(store, "best", other, {}, "second")
        opened(*arguments)

    monkeypatch.setattr(Pretraining, "__init__", overtaken)
    run = train_here(raw, stocked, data, name="further", model={"pretrained": "models/best"})
    monkeypatch.undo()
    assert store.read_json(f"{run}/config.json")["start"]["key"] == f"{finished.run}/{FINAL}"
    own = store.read_bytes(f"{run}/{FINAL}/model.safetensors")
    store.delete(run)
    again = train_here(raw, stocked, data, name="further", model={"pretrained": finished.run})
    assert (again, store.read_bytes(f"{again}/{FINAL}/model.safetensors")) == (run, own)


def test_a_run_in_a_remote_store_is_the_same_and_resumes_there(
    raw: Path, stocked: Path, prepared: tuple[Path, PreparedData]
) -> None:
    bucket = fsspec.filesystem("memory")
    for path in (path for path in prepared[0].rglob("*") if path.is_file()):
        bucket.pipe_file(f"/bucket/store/{path.relative_to(prepared[0]).as_posix()}", path.read_bytes())
    try:
        run = train_here(raw, "memory://bucket/store", prepared[1], training__save_every=2, training__keep_last=3)
        weights = f"/bucket/store/{run}/{FINAL}/model.safetensors"
        lines = bucket.cat_file(f"/bucket/store/{run}/metrics.jsonl").splitlines()
        expected = bucket.cat_file(weights)
        assert train_here(raw, stocked, prepared[1], training__save_every=2) == run
        assert final_bytes(stocked) == expected

        bucket.rm(f"/bucket/store/{run}/{FINAL}", recursive=True)
        bucket.rm_file(f"/bucket/store/{run}/checkpoints/step-00000006/optimizer.safetensors")
        train_here(raw, "memory://bucket/store", prepared[1], training__save_every=2, training__keep_last=3)
        assert bucket.cat_file(weights) == expected
        again = bucket.cat_file(f"/bucket/store/{run}/metrics.jsonl").splitlines()
        steps = [[r["step"] for r in map(json.loads, each) if r["kind"] != "commit"] for each in (again, lines)]
        assert steps[0] == steps[1]
        assert bucket.ls(f"/bucket/store/{run}/tensorboard")
    finally:
        bucket.rm("/bucket", recursive=True)
