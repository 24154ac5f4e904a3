"""Records whose checksums are right and whose contents cannot be: refused by their names, whoever sealed them."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import sealed_lines
from tests.trainer.report_runs import step_record
from tests.trainer.results import a_result
from trainer.common.errors import ArtifactError
from trainer.evaluation.measurement import read_result
from trainer.records.basis import HarnessBasis
from trainer.records.evaluations import HarnessRun, Scores, Task
from trainer.records.plans import TuningPlan
from trainer.records.sealed import read_sealed, write_sealed
from trainer.records.shapes import require_shape
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

DIGEST, PRINT = "0" * 64, "0" * 16
REF = {"key": f"shards/code-{PRINT}", "fingerprint": PRINT, "size": 1}
MOVE = {"action": "promote", "run": "runs/a", "fingerprint": "f", "scores": {"loss": 1.0}, "time": "t", "reason": "r"}
RECORDS: dict[str, dict[str, Any]] = {
    "runs/a/config.json": {
        "fingerprint": fingerprint({}), "identity": {}, "job": {}, "data": {"tokenizer": REF, "shards": [REF]},
        "fork": None,
        "start": None,
    },
    "runs/a/checkpoint-best": {"checkpoint": "checkpoints/step-00000001", "step": 1, "scores": None},
    "runs/a/lease.json": {
        "id": "x", "since": "t", "beat": "2026-01-01T00:00:00+00:00", "host": "h", "pid": 1, "machine": "m",
        "started": "1",
    },
    "runs/a/environment.json": {"packages": {"torch": "2"}},
    "models/best/champion": {"moves": [MOVE]},
    "cache/seen-code-0.json": {"files": {"a": [9, "1", [[0, 9, 9, DIGEST]]]}},
}  # fmt: skip

Change = Callable[[dict[str, Any]], object]
IMPOSSIBLE: list[tuple[str, Change]] = [
    ("runs/a/config.json", lambda record: record.update(identity=7)),
    ("runs/a/config.json", lambda record: record.update(identity={"model": {}})),
    ("runs/a/config.json", lambda record: record.update(fingerprint=PRINT)),
    ("runs/a/config.json", lambda record: record.pop("identity")),
    ("runs/a/config.json", lambda record: record.update(job=[])),
    ("runs/a/config.json", lambda record: record["data"]["shards"][0].update(key="../../outside")),
    ("runs/a/config.json", lambda record: record.update(fork={"run": "runs/..", "checkpoint": "x"})),
    ("runs/a/config.json", lambda record: record.update(fork={"run": "runs/a", "checkpoint": "/etc"})),
    ("runs/a/checkpoint-best", lambda record: record.update(step=-1)),
    ("runs/a/checkpoint-best", lambda record: record.update(step="1")),
    ("runs/a/lease.json", lambda record: record.update(beat="yesterday")),
    ("runs/a/lease.json", lambda record: record.pop("machine")),
    ("runs/a/environment.json", lambda record: record.update(packages=None)),
    ("models/best/champion", lambda record: record["moves"][0].update(run="../elsewhere")),
    ("models/best/champion", lambda record: record["moves"][0].update(run="runs/../../outside")),
    ("models/best/champion", lambda record: record["moves"][0].update(run="shards/a")),
    ("models/best/champion", lambda record: record["moves"][0]["scores"].update(loss=True)),
    ("cache/seen-code-0.json", lambda record: record["files"]["a"][2][0].__setitem__(1, -1)),
    ("cache/seen-code-0.json", lambda record: record["files"]["a"][2][0].pop()),
]


@pytest.mark.parametrize(("key", "change"), IMPOSSIBLE)
def test_a_sealed_record_that_cannot_be_is_damage(empty_store: Store, key: str, change: Change) -> None:
    write_sealed(empty_store, key, RECORDS[key])
    record = read_sealed(empty_store, key)
    assert record is not None and record == RECORDS[key]
    change(record)
    write_sealed(empty_store, key, record)
    with pytest.raises(ArtifactError, match=rf"{key} is damaged: ") as told:
        read_sealed(empty_store, key)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("figure", "value"), [("f1", -1.75), ("recall", 1.5), ("precision", True), ("support", -1)])
def test_figures_of_a_class_that_cannot_be_are_damage(empty_store: Store, figure: str, value: object) -> None:
    key = "runs/a/eval.json"
    a_class = {"name": "no", "precision": 1.0, "recall": 0.5, "f1": 0.75, "support": 3}
    result = a_result(
        {"validation": {"accuracy": 1.0}}, data=["encoded/a"],
        classification={"validation": {"confusion": [[3]], "classes": [a_class]}},
    )  # fmt: skip
    measured: dict[str, Any] = result.recorded()
    (a_class,) = measured["classification"]["validation"]["classes"]
    config = {"data": {"key": "encoded/a"}}
    write_sealed(empty_store, key, measured)
    assert read_result(empty_store, "runs/a", config) == result
    a_class[figure] = value
    write_sealed(empty_store, key, measured)
    with pytest.raises(ArtifactError, match=rf"{key} is damaged: classification\.validation\.classes\.0\.{figure}"):
        read_result(empty_store, "runs/a", config)
    measured["classification"] = {}
    measured["groups"]["validation"]["figures"]["accuracy"] = True
    write_sealed(empty_store, key, measured)
    with pytest.raises(ArtifactError, match=rf"{key} is damaged: groups\.validation\.figures\.accuracy"):
        read_result(empty_store, "runs/a", config)


def test_lm_evals_results_of_other_weights_are_left_out(empty_store: Store) -> None:
    """As of the merged form of an adapter, if the job publishes the adapter and lists no tasks any more."""
    scores, asked = Scores(figures={"acc": 0.5}, counts={"examples": 4}), {"tiny": Task(version="1", identity="ab")}
    for model in ("merged", "adapter"):
        recipe = {"model": model}
        own = a_result({"validation": {}}, data=["encoded/a"], recipe=recipe, fingerprint=fingerprint(recipe))
        write_sealed(empty_store, own.key, own.recorded())
        if model == "merged":
            harness = a_result(
                {}, by="task", groups={"tiny": scores}, measured_on=HarnessBasis(harness={"tiny": "ab"}),
                asked=HarnessRun(lm_eval="1", tasks=asked), key="runs/a/harness.json", recipe=recipe,
                fingerprint=fingerprint(recipe),
            )  # fmt: skip
            write_sealed(empty_store, harness.key, harness.recorded())
        found = read_result(empty_store, "runs/a", {"data": {"key": "encoded/a"}})
        assert found is not None and ("harness/tiny/acc" in found.figures()) == (model == "merged")


def test_a_record_of_a_run_that_cannot_be_is_left_out_and_told(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    key = "runs/a/metrics.jsonl"
    train = step_record(1)
    lines = [
        train,
        {**train, "loss": "x"},
        {**train, "step": -1},
        {"step": 1},
        {"kind": "commit", "step": 1, "seconds": 1.0},
    ]
    empty_store.write_bytes(key, sealed_lines(key, lines))
    with caplog.at_level(logging.WARNING):
        assert [record["kind"] for record in read_records(empty_store, "runs/a")] == ["train", "commit"]
    assert len([record for record in caplog.records if "it is not valid" in record.getMessage()]) == 3


def test_records_that_were_lost_as_a_whole_are_told_of_a_finished_run(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    empty_store.write_bytes("runs/a/final/manifest.json", b"{}")
    records = [{"kind": "checkpoint", "step": 1}, {"kind": "checkpoint", "step": 2}, {"kind": "end", "step": 2}]
    key = "runs/a/metrics.jsonl"
    for kept in range(len(records) + 1):
        empty_store.write_bytes(key, sealed_lines(key, records[:kept]))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert read_records(empty_store, "runs/a") == records[:kept]
        assert ("records are missing" in caplog.text) == (kept < len(records))


def test_a_plan_whose_number_is_written_as_text_is_no_plan() -> None:
    plan = TuningPlan(
        global_batch=8,
        ranks=1,
        micro_batch=8,
        accumulation=1,
        steps_per_epoch=5,
        total_steps=15,
        warmup_steps=0,
        examples=40,
        validation_examples=9,
    )
    require_shape("runs/x/plan.json", plan.model_dump())
    with pytest.raises(ValueError, match="steps_per_epoch"):
        require_shape("runs/x/plan.json", {**plan.model_dump(), "steps_per_epoch": "5"})
