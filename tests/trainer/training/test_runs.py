"""A run's folder: what names it, what it refuses, and when it is finished."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import SMALL_MODEL, digests, small_job, small_values
from tests.trainer.small_jobs import LONG, Finished
from trainer.common.errors import RunError
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import open_dataset
from trainer.data.shard_building import Workers
from trainer.data.step_plan import plan_run
from trainer.kinds.kind import identify_run
from trainer.kinds.pretraining.kind import find_prepared
from trainer.records.fields import list_changes
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed
from trainer.registry.references import References, artifacts_of
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.identity import claim_run, finished_run


def name_of(raw: Path, data: PreparedData, **changes: Any) -> str:
    return identify_run(small_job(raw, Path("anywhere"), **changes), data).key


@pytest.mark.parametrize(
    "changes",
    [
        {"training__learning_rate": 2e-3}, {"training__seed": 1}, {"training__global_batch": 4},
        {"training__max_steps": 7},
        {"training__precision": "bf16"}, {"training__context": 16}, {"model__config": {**SMALL_MODEL, "n_layer": 1}},
        {"training__alpha": 0.5}, {"training__schedule": "linear"}, {"training__weight_decay": 0.0},
    ],
)  # fmt: skip
def test_what_decides_the_outcome_names_the_run(raw: Path, data: PreparedData, changes: dict[str, Any]) -> None:
    assert name_of(raw, data, **changes) != name_of(raw, data)


@pytest.mark.parametrize(
    "changes",
    [
        {"training__log_every": 5}, {"training__save_every": 1}, {"training__evaluate_every": 3},
        {"training__keep_last": 9},
        {"training__micro_batch": 2}, {"training__processes": 2}, {"training__compile": True},
        {"training__gradient_checkpointing": True}, {"evaluation__batch": 3}, {"data__workers": 2},
        {"model__attention": "eager"}, {"training__stride": 32},
    ],
)  # fmt: skip
def test_how_it_is_carried_out_does_not(raw: Path, data: PreparedData, changes: dict[str, Any]) -> None:
    assert name_of(raw, data, **changes) == name_of(raw, data)


def test_how_corpora_are_mixed_counts_where_there_are_some(raw: Path, data: PreparedData) -> None:
    corpora = small_values(raw, Path("anywhere"))["data"]["corpora"]
    assert len(corpora) > 1
    one = {"data__corpora": corpora[:1]}
    assert name_of(raw, data, **one, training__alpha=0.5) == name_of(raw, data, **one)


def test_the_order_of_corpora_counts_because_samples_are_drawn_in_it(
    raw: Path, prepared: tuple[Path, PreparedData]
) -> None:
    store, data = prepared
    turned = data.model_copy(update={"shards": data.shards[::-1]})
    corpora = small_values(raw, store)["data"]["corpora"]
    one, other = small_job(raw, store), small_job(raw, store, data__corpora=corpora[::-1])
    assert identify_run(one, data).key != identify_run(other, turned).key

    def drawn(job: PipelineJob, found: PreparedData) -> list[tuple[str, int]]:
        named, plan = [each.name for each in job.data.corpora], plan_run(Store(str(store)), found, job, 1)
        with closing(open_dataset(Store(str(store)), found, job.training, plan, None)) as dataset:
            numbers, windows = dataset.order.samples(0, 5000)
        return [(named[number], window) for number, window in zip(numbers.tolist(), windows.tolist(), strict=True)]

    assert drawn(one, data) != drawn(other, turned)


def test_a_number_counts_by_its_value_however_a_form_spells_it(raw: Path, data: PreparedData) -> None:
    def name(whole: Any) -> str:
        changes = {"training__schedule": "cosine_with_restarts", "training__schedule_options": {"num_cycles": whole}}
        return name_of(raw, data, model__config={**SMALL_MODEL, "n_layer": whole, "deep": [{"er": whole}]}, **changes)

    assert name(2) == name(2.0) != name(3)


def test_a_model_file_counts_by_its_content_not_by_its_name(raw: Path, data: PreparedData, tmp_path: Path) -> None:
    for name, layers in (("a", 2), ("b", 2), ("c", 1)):
        (tmp_path / f"{name}.yaml").write_text(f"model_type: gpt2\nn_layer: {layers}\n")
    one, same, other = (name_of(raw, data, model__config=str(tmp_path / f"{name}.yaml")) for name in "abc")
    assert one == same != other


def test_a_pretrained_folder_counts_by_its_content(
    raw: Path, data: PreparedData, finished: Finished, tmp_path: Path
) -> None:
    final = finished.store / finished.run / FINAL
    copy = shutil.copytree(final, tmp_path / "copy")
    one, same = (name_of(raw, data, model={"pretrained": str(path)}) for path in (final, copy))
    assert one == same
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    assert name_of(raw, data, model={"pretrained": str(copy)}) != one


def test_a_folder_of_other_settings_is_not_touched(raw: Path, data: PreparedData, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    first, second = (small_job(raw, tmp_path, run="mine", training__seed=seed) for seed in (0, 1))
    claim_run(store, identify_run(first, data), first, data)
    before = digests(tmp_path)
    with pytest.raises(RunError, match=r"training.seed: 0 -> 1\. Set another `run`"):
        claim_run(store, identify_run(second, data), second, data)
    assert digests(tmp_path) == before
    claim_run(store, identify_run(first, data), first, data)
    assert digests(tmp_path) == before, "claiming the same again writes the same"


def test_differences_name_the_leaves() -> None:
    before = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    assert list_changes(before, {"a": {"b": 2, "c": [1, 2]}, "e": 5}) == ["a.b: 1 -> 2", "e: None -> 5"]
    assert list_changes(before, before) == []


def long_job(raw: Path, store: Path) -> PipelineJob:
    return small_job(raw, store, **LONG)


def test_a_finished_run_is_found_and_a_damaged_one_is_not(
    raw: Path, stocked: Path, data: PreparedData, finished: Finished
) -> None:
    shutil.copytree(finished.store / finished.run, stocked / finished.run)
    store, run = Store(str(stocked)), identify_run(long_job(raw, stocked), data)
    found = finished_run(store, run)
    assert found is not None
    assert (found.key, found.reused) == (finished.run, True)
    weights = stocked / finished.run / FINAL / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert finished_run(store, run) is None


def test_a_finished_run_of_another_job_is_not_this_ones(raw: Path, data: PreparedData, finished: Finished) -> None:
    name = finished.run.removeprefix("runs/")
    other = identify_run(small_job(raw, finished.store, run=name, training__seed=9), data)
    assert finished_run(Store(str(finished.store)), other) is None


def test_a_run_records_what_it_begins_with_and_a_fork_keeps_its_origin(
    raw: Path, data: PreparedData, stocked: Path
) -> None:
    store = Store(str(stocked))
    taken = small_job(raw, stocked, data__tokenizer={"path": str(stocked / data.tokenizer.key)}, run="one")
    run = identify_run(taken, data)
    assert {role: each.key for role, each in run.inputs.items()} == {
        "tokenizer": data.tokenizer.key,
        **{f"shards of {name}": ref.key for name, ref in zip(("code", "docs"), data.shards, strict=True)},
        "tokenizer taken from": data.tokenizer.key,
    }
    assert run.inputs["tokenizer"].content == data.tokenizer.content != ""
    claim_run(store, run, taken, data)
    job = small_job(
        raw, stocked, run="one", training__seed=5, resume="fork", data__tokenizer=taken.data.tokenizer.model_dump()
    )
    fork = identify_run(job, data)
    claim_run(store, fork, job, data, lambda: {"run": "runs/one", "checkpoint": "checkpoints/step-00000001"})
    named = job.model_copy(update={"run": fork.key.removeprefix("runs/"), "resume": "exact"})
    again = identify_run(named, data)
    assert again.origin is None
    claim_run(store, again, named, data)
    config = read_sealed(store, f"{fork.key}/config.json")
    assert config is not None and config["inputs"]["fork of"]["key"] == "runs/one"
    assert "runs/one" in References(store).of(fork.key)


def test_a_run_is_trained_on_its_tokenizer_and_data_not_on_what_these_were_taken_from() -> None:
    keys = {
        "model": "runs/base", "reference": "references/pairs-1", "encoded set": "encoded/pairs-1",
        "tokenizer": "tokenizers/taken-1", "tokenizer taken from": "tokenizers/bpe-1", "shards of b": "shards/b-1",
        "shards of a": "shards/a-1",
    }  # fmt: skip
    inputs = {role: {"key": key} for role, key in keys.items()}
    found = artifacts_of({"data": {"shards": [{"key": "shards/b-1"}, {"key": "shards/a-1"}]}, "inputs": inputs})
    assert found == ["encoded/pairs-1", "references/pairs-1", "tokenizers/taken-1", "shards/b-1", "shards/a-1"]


def test_looking_for_what_is_prepared_starts_no_workers(
    raw: Path, stocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(Workers, "start_early", lambda self, size, *rest: started.append(size))
    own = Path(shutil.copytree(raw, tmp_path / "own"))
    (own / "code" / "more.py").write_text("more = 1\n")
    assert find_prepared(small_job(own, stocked).preparation()) is None and started == []
