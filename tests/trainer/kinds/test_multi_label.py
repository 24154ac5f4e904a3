"""Several labels an example: read from every source, trained on, measured as scikit-learn does, and predicted."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

from tests.support import read_rows
from tests.trainer.labelled_data import as_csv, as_jsonl, as_parquet, read, written
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.made import encode
from trainer.common.errors import CorpusError, RecordError
from trainer.common.progress import silent
from trainer.config.labelled import FinetuneJob, LabelledDataConfig, PredictJob
from trainer.evaluation.builtin_metrics import SEVERAL
from trainer.kinds.labelled.measure import prediction_lines
from trainer.kinds.labelled.predict import predict_texts
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.kinds.labelled.workload import Finetuning
from trainer.models.classifiers import classes_of
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

CLASSES = ["args", "doc", "return"]
LISTS = [["doc"], [], ["args", "return"], ["return"], ["args", "doc", "return"]]
OPTIONS: dict[str, Any] = {"task": "multi-label", "id_column": None, "text_columns": ["a"]}


def texts(count: int) -> list[dict[str, Any]]:
    return [{"a": f"text {n}", "label": LISTS[n % len(LISTS)]} for n in range(count)]


def in_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"a": row["a"], **{name: int(name in row["label"]) for name in CLASSES}} for row in rows]


EXPECTED = [[int(name in found) for name in CLASSES] for found in LISTS]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "columns", "headerless"])
def test_every_source_gives_the_same_labels(kind: str, tmp_path: Path) -> None:
    rows, options = texts(10), dict(OPTIONS)
    if kind in ("jsonl", "parquet"):
        data = (as_jsonl if kind == "jsonl" else as_parquet)(rows)
    elif kind == "csv":
        data = as_csv([{**row, "label": "; ".join(row["label"])} for row in rows])
        options |= {"label_separator": ";"}
    else:
        data = as_csv(in_columns(rows))
        options |= {"label_columns": CLASSES}
        if kind == "headerless":
            data = data.split(b"\n", 1)[1]
            options |= {"columns": ["a", *CLASSES]}
    source = kind if kind in ("jsonl", "parquet") else "csv"
    path = [written(tmp_path / f"train.{source}", data)]
    bare = written(tmp_path / f"test.{source}", {
        "jsonl": as_jsonl, "parquet": as_parquet,
        "csv": as_csv}[source]([{"a": row["a"]} for row in rows]))  # fmt: skip
    if kind == "headerless":
        bare = written(tmp_path / "test.csv", "".join(f"{row['a']}\n" for row in rows))
    found = read(source=source, train=path, validation=path, test=[bare], **options)
    assert found.classes == CLASSES
    assert found.labels["train"] == EXPECTED * 2
    assert found.labels["test"] == [[-1] * 3] * 10
    assert found.texts["train"] == found.texts["test"] == [(row["a"],) for row in rows]


def test_a_test_file_without_header_and_labels_has_as_many_columns_as_are_left(tmp_path: Path) -> None:
    train = [written(tmp_path / "train.csv", "0,x,1,0\n1,y,0,1\n")]
    options: dict[str, Any] = {
        "source": "csv", "train": train, "validation": train, **OPTIONS, "columns": ["number", "a", "p", "q"],
        "label_columns": ["p", "q"],
    }  # fmt: skip
    found = read(**options, test=[written(tmp_path / "test.csv", "0,u\n1,v\n")])
    assert (found.labels["train"], found.labels["test"]) == ([[1, 0], [0, 1]], [[-1, -1]] * 2)
    assert read(**options, test=[written(tmp_path / "test.csv", "0,u,-1,-1\n1,v,1,0\n")]).labels["test"] == [
        [-1, -1],
        [1, 0],
    ]
    assert read(**options, test=[written(tmp_path / "test.csv", "a,q,p\nu,1,0\n")]).labels["test"] == [[0, 1]]
    with pytest.raises(RecordError, match="line 2: 4 columns, `columns` without the labels has 2"):
        read(**options, test=[written(tmp_path / "test.csv", "0,u\n1,v,0,1\n")])
    with pytest.raises(RecordError, match="line 1: 3 columns, `columns` has 4"):
        read(**options, test=[written(tmp_path / "test.csv", "0,u,1\n")])


def test_a_class_that_never_applies_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = [written(tmp_path / "a.jsonl", as_jsonl([{"a": "x", "label": row} for row in (["a"], ["a", "c"], [])]))]
    assert read(source="jsonl", train=path, validation=path, **OPTIONS, classes=["a", "b", "c"]).classes == [
        "a",
        "b",
        "c",
    ]
    assert [record.getMessage() for record in caplog.records if "no example" in record.getMessage()] == [
        "data set small: no example of the train split has the class 'b'"
    ]


def test_integers_are_ids_and_bad_labels_name_their_line(tmp_path: Path) -> None:
    def labels(*rows: Any, **options: Any) -> Any:
        path = [written(tmp_path / "a.jsonl", as_jsonl([{"a": "x", "label": row} for row in rows]))]
        return read(source="jsonl", train=path, validation=path, **{**OPTIONS, **options})

    assert labels([0, 2], [1], []).labels["train"] == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert labels([2, 2], [0, 1], []).labels["train"] == [[0, 0, 1], [1, 1, 0], [0, 0, 0]]
    for rows, message in (
        ((["a"], "b", ["b"]), r"line 2: column 'label' holds str, not a list of labels"),
        ((["a"], ["b"], None), r"line 3: column 'label': there are no labels"),
        ((["a"], ["b", "\ud800"]), r"line 2: column 'label' is not valid UTF-8 at character 0"),
        (([2], [0, 1, 0.0]), r"line 2: column 'label' holds 3 labels that are 0 or 1, .* a column \(label_columns\)"),
        ((["a"], ["b", None]), r"line 2: column 'label' holds a list with an empty label"),
        (
            ([True, False], [False, True]),
            r"line 1: column 'label' holds a list of true and false, .* a column \(label_columns\)",
        ),
    ):
        with pytest.raises(RecordError, match=message):
            labels(*rows)
    with pytest.raises(RecordError, match=r"line 2: column 'label': 'c' is not a class; the classes are 'a', 'b'"):
        labels(["a"], ["c"], classes=["a", "b"])
    with pytest.raises(CorpusError, match=r"mean 5 classes, but 1, 3 have no example. 4 is first at .* line 2"):
        labels([0], [2, 4], [4], [], [])
    with pytest.raises(
        CorpusError, match=r"holds integers \(-1\) and other texts \('a', 'b'\): correct them, or list all"
    ):
        labels(["a"], ["b"], -1)
    with pytest.raises(
        RecordError, match=r"line 3: column 'label': -1 is not a class; the classes are 0 \('a'\), 1 \('b'\)"
    ):
        labels([0], [1], -1, classes=["a", "b"])
    with pytest.raises(RecordError, match=r"line 1: column 'label' holds list, .* set task to multi-label"):
        labels(["a"], ["c"], task="classification")
    for classes in (None, ["a", "b"]):
        with pytest.raises(CorpusError, match=r"holds 0 and 1 in each list, .* give each class a column"):
            labels([0, 1], [1, 0], [1, 0], classes=classes)
    path = [written(tmp_path / "a.csv", "a,p,q\nx,1,0\ny,1,2\n")]
    with pytest.raises(RecordError, match=r"line 3: column 'q' holds '2', not 0 or 1"):
        read(source="csv", train=path, validation=path, **OPTIONS, label_columns=["p", "q"])
    with pytest.raises(CorpusError, match="has no column 'r'"):
        read(source="csv", train=path, validation=path, **OPTIONS, label_columns=["p", "r"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a|b",
            r"holds 'a\|b'; set label_separator to '\|' if that separates labels, or to ',' if it is part of a label",
        ),
        ("a;b", "set label_separator to ';'"),
        ("a、b", "set label_separator to '、'"),
        ("a،b", "set label_separator to '،'"),
        ("\"['a', 'b']\"", "a list written as text"),
    ],
)
def test_a_text_that_seems_to_be_divided_otherwise_is_refused(text: str, message: str, tmp_path: Path) -> None:
    def labels(**options: Any) -> Any:
        path = [written(tmp_path / "a.csv", f"a,label\nx,a\ny,b\nz,{text}\n")]
        return read(source="csv", train=path, validation=path, **OPTIONS, **options).labels["train"]

    with pytest.raises(RecordError, match=rf"line 4: column 'label' .*{message}"):
        labels()
    if "[" not in text:
        assert labels(label_separator=text[1])[-1] == [1, 1]
        assert labels(label_separator=",")[-1] == [0, 1, 0]


def test_columns_say_yes_no_or_nothing(tmp_path: Path) -> None:
    def labels(test: str, train: str = "a,p,q\nx,1,0\ny,TRUE,False\nz,0.0,1.0\n") -> Any:
        files = {
            split: [written(tmp_path / f"{split}.csv", text)] for split, text in (("train", train), ("test", test))
        }
        return read(source="csv", **files, validation=files["train"], **OPTIONS, label_columns=["p", "q"]).labels

    assert labels("a,p,q\nu,-1,-1\nv,,\nw,0,1\n") == {
        "train": [[1, 0], [1, 0], [0, 1]], "validation": [[1, 0], [1, 0], [0, 1]], "test": [[-1, -1], [-1, -1], [0, 1]],
    }  # fmt: skip
    assert labels("a,p,q\nu,0,0\nv,0,0\n")["test"] == [[-1, -1], [-1, -1]], "labels that are withheld"
    with pytest.raises(CorpusError, match=r"test.csv has no column 'q'; it has a, p"):
        labels("a,p\nu,1\n")
    with pytest.raises(RecordError, match=r"train split: .*line 2: column 'p': there are no labels"):
        labels("a\nu\n", train="a,p,q\nx,-1,-1\ny,1,0\n")


@pytest.mark.parametrize("kind", ["disk", "parquet"])
def test_lists_of_a_saved_data_set_name_its_classes(kind: str, tmp_path: Path) -> None:
    rows = [{"a": "x", "label": [2, 0]}, {"a": "y", "label": []}]
    features = datasets.Features(
        {"a": datasets.Value("string"), "label": datasets.List(datasets.ClassLabel(names=CLASSES))}
    )
    saved = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict({"train": saved, "validation": saved}).save_to_disk(str(tmp_path / "saved"))
    saved.to_parquet(path := str(tmp_path / "saved.parquet"))
    place = {"path": str(tmp_path / "saved")} if kind == "disk" else {"train": [path], "validation": [path]}
    found = read(source=kind, **place, **OPTIONS)
    assert (found.classes, found.labels["train"]) == (CLASSES, [[1, 0, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "classification", "label_columns": ["b", "c"]}, "label_columns requires task multi-label"),
        (
            {"label_columns": ["b", "c"], "classes": ["b", "c"]},
            "label_columns already names the classes: remove classes",
        ),
        ({"label_columns": ["b", "c"], "label_column": "d"}, "remove label_column"),
        (
            {"task": "regression", "label_separator": ";"},
            "label_separator requires task multi-label, not 'regression'",
        ),
        (
            {"label_separator": ";", "source": "jsonl"},
            "label_separator requires source csv: 'jsonl' holds lists of labels",
        ),
        (
            {"label_columns": ["a", "c"]},
            "the column 'a' occurs twice in text_columns, label_columns and id_column",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LabelledDataConfig.model_validate({"source": "csv", "train": ["a.csv"], **OPTIONS, **changes})


@pytest.mark.parametrize(
    "changes", [{}, {"label_columns": CLASSES}, {"label_separator": ";"}, {"task": "classification"}]
)
def test_a_job_is_read_back_as_its_run_records_it(changes: dict[str, Any]) -> None:
    data = LabelledDataConfig.model_validate({"source": "csv", "train": ["a.csv"], **OPTIONS, **changes})
    assert LabelledDataConfig.model_validate(data.model_dump(mode="json")) == data


@pytest.fixture
def job(pairs: Path, pretrained: Path, tmp_path: Path) -> FinetuneJob:
    """The functions' code, with what occurs in it."""
    files = {}
    for split in ("train", "validation", "test"):
        rows = read_rows(pairs / f"{split}.jsonl")
        marks = {"args": "(self", "doc": "if ", "return": "return"}
        made = [
            {"id": r["id"], "code": r["code"], "label": [n for n in CLASSES if marks[n] in r["code"]]} for r in rows
        ]
        kept = [{k: v for k, v in row.items() if k != "label" or split != "test"} for row in made]
        files[f"data__{split}"] = [written(tmp_path / f"{split}.jsonl", as_jsonl(kept))]
    return finetune_job(
        pairs, tmp_path / "store", pretrained, **files, data__classes=CLASSES, data__task="multi-label",
        data__text_columns=["code"], evaluation__best_by="f1_micro", run="several", training__final="best",
    )  # fmt: skip


def test_another_models_single_label_may_apply_or_not() -> None:
    config = BertConfig(num_labels=1, id2label={0: "toxic"}, problem_type="multi_label_classification")
    classes, logits = classes_of(config), np.array([[1.0], [-1.0]], dtype=np.float32)
    lines = [json.loads(line) for line in prediction_lines(["x", "y"], logits, classes, several=True)]
    assert [line["prediction"] for line in lines] == [["toxic"], []]
    assert [line["probabilities"] for line in lines] == [{"toxic": 0.731059}, {"toxic": 0.268941}]


def test_predictions_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, ids = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32), [*"abcdefg"]
    scores[4] = np.nan
    whole = [[*prediction_lines(ids, scores, ["x", "y", "z"], several)] for several in (False, True)]
    monkeypatch.setattr("trainer.kinds.labelled.measure.AT_ONCE", 6)
    assert [[*prediction_lines(ids, scores, ["x", "y", "z"], several)] for several in (False, True)] == whole
    assert [json.loads(line)["id"] for line in whole[0]] == ids


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_is_that_of_transformers_whatever_the_ranks(job: FinetuneJob, ranks: int) -> None:
    work = Finetuning(job, Store(job.store), encode(job, silent()), ranks)
    model = work.load_model(None).eval()
    batches = [work.read_batch(0, rank) for rank in range(ranks)]
    objective = work.make_objective(model)
    ours = sum(objective(**inputs) for batch in batches for inputs in batch.micro_batches) / batches[0].targets
    (whole,) = Finetuning(job, Store(job.store), encode(job, silent()), 1).read_batch(0, 0).micro_batches
    inputs = {name: part for name, part in whole.items() if name not in ("labels", "weights")}
    theirs = model(**inputs, labels=whole["labels"].float()).loss
    assert float(ours.detach()) == pytest.approx(theirs.item(), rel=1e-5)


def test_a_run_is_trained_measured_told_and_predicts(job: FinetuneJob, runtime: Runtime, tmp_path: Path) -> None:
    assert labelled_preflight(job, silent()).metrics == list(SEVERAL)
    run = train(job, silent())
    found = evaluate_run(job, run.key, silent())
    folder = Path(job.store) / run.key
    lines = read_rows(folder / "predictions" / "validation.jsonl")
    rows = read_rows(tmp_path / "validation.jsonl")
    told, true = (np.array([[name in found for name in CLASSES] for found in each]) for each in (
        [line["prediction"] for line in lines], [row["label"] for row in rows]))  # fmt: skip
    scores = found.groups["validation"].figures
    assert set(found.groups) == {"validation"}, "the test split has no labels"
    assert scores["f1_micro"] == pytest.approx(f1_score(true, told, average="micro"))
    assert scores["f1_macro"] == pytest.approx(f1_score(true, told, average="macro", zero_division=0.0))
    assert scores["subset_accuracy"] == pytest.approx(accuracy_score(true, told))
    assert [each.support for each in found.classification["validation"].classes] == true.sum(axis=0).tolist()

    tokenizer = AutoTokenizer.from_pretrained(folder / "final")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "final").eval()
    assert model.config.problem_type == "multi_label_classification"
    with torch.no_grad():
        logits = [
            model(**tokenizer(row["code"], truncation=True, max_length=32, return_tensors="pt")).logits[0]
            for row in rows
        ]
    chances = torch.stack(logits).sigmoid().numpy()
    np.testing.assert_allclose([list(line["probabilities"].values()) for line in lines], chances, atol=1e-4)
    loss = F.binary_cross_entropy_with_logits(torch.stack(logits), torch.from_numpy(true).float())
    assert scores["loss"] == pytest.approx(loss.item(), abs=1e-4)

    make_report(Store(job.store), run.key)
    page, card = ((folder / name).read_text() for name in ("report.html", "final/README.md"))
    assert "which classes apply" in page and "by their label" not in page and "Figures of each class" in page
    assert "metrics:\n- f1\n- accuracy\n" in card and "multi-label text classification" in card
    assert "logits.sigmoid().tolist()" in card

    values = {"source": "jsonl", "paths": [str(tmp_path / "validation.jsonl")], "id_column": "id"}
    made = predict_texts(PredictJob.model_validate({"store": job.store, "model": "several", "data": values}), silent())
    again = (Path(job.store) / made.key / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in again] == [line["prediction"] for line in lines]
    assert made.predicted == dict(zip(CLASSES, told.sum(axis=0).tolist(), strict=True))
