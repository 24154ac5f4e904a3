"""Measuring any checkpoint of a fine-tuned run, as the run itself measured it."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import trainer.kinds.kind
import trainer.kinds.labelled.evaluate
from tests.support import read_rows
from tests.trainer.labelled_data import as_csv, as_jsonl, written
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError, ConfigError, CorpusError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.measurement import evaluate
from trainer.kinds.labelled.kind import identify_checkpoint
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.records.evaluations import Result
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.references import References
from trainer.store.storage import Store
from trainer.training.runtime import Runtime


@pytest.fixture
def run(tuned: Finished, tmp_path: Path) -> Finished:
    """A copy of a fine-tuned run, to be written to."""
    return tuned.copy(tmp_path)


def measure(run: Finished, checkpoint: str, **changes: Any) -> Result:
    result = evaluate_checkpoint(EvaluateJob(store=str(run.store), checkpoint=checkpoint, **changes), silent())
    assert isinstance(result, Result)
    return result


@pytest.mark.deep
def test_every_checkpoint_has_the_figures_that_were_measured_when_it_was_saved(run: Finished, runtime: Runtime) -> None:
    folders = sorted((run.folder / "checkpoints").iterdir())
    saved = {folder: json.loads((folder / "manifest.json").read_text())["details"]["scores"] for folder in folders}
    measured = {folder: scores for folder, scores in saved.items() if scores}
    assert measured
    for folder, scores in measured.items():
        key = f"{run.run}/checkpoints/{folder.name}"
        result = measure(run, key, evaluation={"batch": 7})
        assert {name: pytest.approx(value, abs=1e-5) for name, value in scores.items()} == result.groups[
            "validation"
        ].figures
        assert (result.checkpoint, result.model, result.predictions) == (key, key, {})
        assert result.key == f"evaluations/{folder.name}-{result.fingerprint}.json"
        assert list(result.classification) == list(result.groups) == ["validation"], "the test split has no labels"
        assert measure(run, key) == result.model_copy(update={"reused": True})


@pytest.mark.deep
def test_the_final_model_is_measured_as_its_run_did_and_otherwise_apart(run: Finished, runtime: Runtime) -> None:
    own = measure(run, "pairs")
    assert (own.reused, own.key) == (True, f"{run.run}/eval.json")
    # A process keeps the precision it began with.
    job = EvaluateJob(store=str(run.store), checkpoint="pairs", precision="bf16")
    other = identify_checkpoint(Store(job.store), job)
    assert other is not None and other.key == f"evaluations/{run.folder.name}-{other.fingerprint}.json"
    assert other.fingerprint != own.fingerprint and other.settings.training.precision == "bf16"
    (run.folder / "eval.json").unlink()
    again = measure(run, "pairs")
    assert (again.groups, again.predictions) == (own.groups, own.predictions)
    (encoded,) = again.data
    assert encoded in References(Store(str(run.store))).reached([run.run])


def test_what_goes_with_language_models_only_is_refused_or_said(
    run: Finished, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    for setting, value in {"shards": ["shards/code-0123456789abcdef"], "context": 32}.items():
        with pytest.raises(
            ConfigError, match=f"^{setting} applies to language models only, but pairs is a .*; remove {setting}"
        ):
            measure(run, "pairs", **{setting: value})
    with caplog.at_level(logging.INFO):
        measure(run, "pairs", evaluation={"prompts": ["def "]})
    assert "pairs is a classifier: evaluation.prompts has no effect on it" in caplog.text


def test_a_classifier_of_no_run_and_one_whose_data_is_gone_are_refused(
    run: Finished, tmp_path: Path, runtime: Runtime
) -> None:
    folder = shutil.copytree(run.folder / "final", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="elsewhere is a classifier that does not belong to a run in this store"):
        measure(run, str(folder))
    shutil.rmtree(run.store / "encoded")
    (run.folder / "eval.json").unlink()
    with pytest.raises(ArtifactError, match="holds no encoded data set; run its fine-tuning job again"):
        measure(run, "pairs")


def truth(run: Finished, rows: list[dict[str, Any]], labelled: list[int]) -> dict[str, float]:
    """What scikit-learn says of the final model's predictions, as transformers gives them."""
    folder = run.folder / "final"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    guesses = []
    for row in rows:
        inputs = tokenizer(row["summary"], row["code"], truncation="longest_first", return_tensors="pt")
        with torch.no_grad():
            guesses.append(int(model(**inputs).logits.argmax()))
    return {"accuracy": accuracy_score(labelled, guesses), "f1": f1_score(labelled, guesses, average="macro")}


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_finished_classifier_is_measured_on_new_labelled_files_without_its_training_data(
    ending: str, run: Finished, pairs: Path, tmp_path: Path, runtime: Runtime
) -> None:
    rows = read_rows(pairs / "train.jsonl")[40:90]
    rows = [{**row, "summary": " ".join(row["summary"].split()), "code": row["code"][:400], "extra": 1} for row in rows]
    names = ["other", "match"]
    labels = [row["label"] if isinstance(row["label"], int) else names.index(row["label"]) for row in rows]
    path = written(tmp_path / f"new.{ending}", as_jsonl(rows) if ending == "jsonl" else as_csv(rows))
    shutil.rmtree(run.store / "encoded")
    result = measure(run, "pairs", labelled=[path])
    expected = truth(run, rows, labels)
    assert list(result.groups) == ["test"] and result.files == [path]
    assert result.figures()["accuracy"] == pytest.approx(expected["accuracy"])
    classes = result.classification["test"].classes
    assert sum(each.f1 for each in classes) / 2 == pytest.approx(expected["f1"])
    assert [each.support for each in classes] == [labels.count(0), labels.count(1)]
    assert result.key == f"evaluations/{run.folder.name}-{result.fingerprint}.json" and result.predictions == {}
    assert result.lines()[0].startswith("test       loss ")
    assert measure(run, "pairs", labelled=[path]) == result.model_copy(update={"reused": True})
    written(tmp_path / f"new.{ending}", as_jsonl(rows[1:]) if ending == "jsonl" else as_csv(rows[1:]))
    assert measure(run, "pairs", labelled=[path]).fingerprint != result.fingerprint


def test_an_output_that_is_not_finite_counts_only_where_there_is_a_label(
    run: Finished, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    rows = [
        {**row, "label": row["label"] if number else None}
        for number, row in enumerate(read_rows(pairs / "train.jsonl")[:9])
    ]
    predict = trainer.kinds.labelled.evaluate.predict
    for bad, known in ((0, True), (1, False)):

        def overflown(*arguments: Any, bad: int = bad) -> Any:
            logits = predict(*arguments)
            logits[bad, 0] = math.nan
            return logits

        monkeypatch.setattr("trainer.kinds.labelled.evaluate.predict", overflown)
        path = written(tmp_path / "new.jsonl", as_jsonl(rows[: 9 - bad]))
        result = measure(run, "pairs", labelled=[path])
        assert math.isfinite(result.figures()["accuracy"]) is known
        assert ("test" in result.classification) is known


def change_job(run: Finished, part: str, **settings: Any) -> None:
    """Have a run's record say that it was trained with other settings."""
    store, config = Store(str(run.store)), f"{run.run}/config.json"
    said = read_sealed(store, config)
    assert said is not None
    said["job"][part] |= settings
    write_sealed(store, config, said)


def test_rows_of_new_files_that_are_skipped_are_told(
    run: Finished, pairs: Path, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """A run may let some be skipped; its evaluation says which it has not measured."""
    rows = read_rows(pairs / "train.jsonl")[40:50]
    path = written(
        tmp_path / "new.jsonl", as_jsonl([{**rows[0], "label": "maybe"}, {**rows[1], "label": "perhaps"}, *rows[2:]])
    )
    change_job(run, "data", max_bad_records=5)
    result = measure(run, "pairs", labelled=[path])
    assert sum(each.support for each in result.classification["test"].classes) == 8
    assert "skipped 2 bad records" in caplog.text and "'maybe' is not a class" in caplog.text


def test_a_model_may_be_divided_whatever_it_was_trained_with(run: Finished, runtime: Runtime) -> None:
    whole = measure(run, "pairs").figures()
    change_job(run, "training", optimizer="muon")
    assert measure(run, f"{run.run}/checkpoint-last", sharding="fsdp").figures() == pytest.approx(whole, abs=1e-6)


def test_what_says_how_csv_is_read_goes_by_the_files_that_are_measured_on(
    run: Finished, pairs: Path, tmp_path: Path, runtime: Runtime
) -> None:
    rows = read_rows(pairs / "train.jsonl")[40:50]
    path = written(tmp_path / "new.jsonl", as_jsonl(rows))
    expected = measure(run, "pairs", labelled=[path]).figures()
    change_job(run, "data", source="csv", delimiter=";", quoting=True)
    assert measure(run, "pairs", labelled=[path]).figures() == expected


def test_new_files_need_no_ids(run: Finished, pairs: Path, tmp_path: Path, runtime: Runtime) -> None:
    rows = read_rows(pairs / "train.jsonl")[40:50]
    expected = measure(run, "pairs", labelled=[written(tmp_path / "new.jsonl", as_jsonl(rows))]).figures()
    without = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    path = written(tmp_path / "without.jsonl", as_jsonl(without))
    assert measure(run, "pairs", labelled=[path]).figures() == expected


def test_files_that_a_classifier_cannot_be_measured_on_are_refused(
    run: Finished, pretrained: Path, tmp_path: Path, runtime: Runtime
) -> None:
    row = {"summary": "one", "code": "two", "id": "1"}
    for rows, says in {
        "label": ([row], "has no column 'label'; it has summary, code, id"),
        "class": ([{**row, "label": "maybe"}], "line 1: column 'label': 'maybe' is not a class"),
        "none": (
            [{**row, "label": None}],
            "no example has a label, so nothing can be measured; use `predict` to predict them",
        ),
    }.values():
        with pytest.raises(CorpusError) as caught:
            measure(run, "pairs", labelled=[written(tmp_path / "new.jsonl", as_jsonl(rows))])
        assert says in str(caught.value)
    with pytest.raises(CorpusError, match="no file matches"):
        measure(run, "pairs", labelled=[str(tmp_path / "none.jsonl")])
    with pytest.raises(ConfigError, match=r"labelled applies to classifiers only, but .* is not one; remove labelled"):
        measure(run, str(pretrained), labelled=[str(tmp_path / "new.jsonl")])


def test_a_checkpoint_that_is_removed_while_it_is_measured_is_named(run: Finished) -> None:
    store, checkpoint = Store(str(run.store)), min((run.folder / "checkpoints").iterdir())
    key = f"{run.run}/checkpoints/{checkpoint.name}"
    kind, wanted = trainer.kinds.kind.identify_checkpoint(store, EvaluateJob(store=str(run.store), checkpoint=key))
    shutil.rmtree(checkpoint)  # as its training does once it has saved newer ones
    with pytest.raises(ArtifactError, match=f"{key} was removed while it was read: .* run this again"):
        evaluate(store, wanted, kind.measure, silent())
