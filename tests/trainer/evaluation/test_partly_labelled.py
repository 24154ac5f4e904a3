"""A test split of which some examples have no label: all are predicted, and the figures are of those that have one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.depth import once
from tests.trainer.labelled_data import as_jsonl, written
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.labelled_words import CLASSES, word_rows
from trainer.common.progress import silent
from trainer.config.labelled import FinetuneJob
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

NAMES = {"classification": ["even", "odd"], "multi-label": ["even", "third"], "regression": None, "tokens": CLASSES}
WITHHELD: dict[str, list[Any]] = {
    "classification": [None, -1], "multi-label": [None, -1, [-1, -1]], "regression": [None],
    "tokens": [None, [-1], [-100]],
}  # fmt: skip
"""What stands in place of a label; -1 is a number among numbers."""


def rows_of(task: str) -> list[dict[str, Any]]:
    """Words with one of the labels for each of them, or for all."""
    labels = {
        "classification": lambda n: NAMES["classification"][n % 2], "regression": lambda n: n % 5 / 2,
        "multi-label": lambda n: ["even"] * (n % 2) + ["third"] * (n % 3 == 0),
    }  # fmt: skip
    return [
        {"id": row["id"], "a": row["tokens"], "label": row["ner_tags"]}
        if task == "tokens"
        else {"id": row["id"], "a": " ".join(row["tokens"]), "label": labels[task](n)}
        for n, row in enumerate(word_rows(40))
    ]


def hide(row: dict[str, Any], mark: Any) -> dict[str, Any]:
    return {**row, "label": mark * len(row["a"]) if isinstance(row["a"], list) and mark else mark}


def measure(task: str, test: list[dict[str, Any]], folder: Path, model: Path) -> tuple[FinetuneJob, str, Any]:
    files = {"train": rows_of(task), "validation": rows_of(task)[:9], "test": test}
    paths = {f"data__{split}": [written(folder / f"{split}.jsonl", as_jsonl(rows))] for split, rows in files.items()}
    job = finetune_job(
        folder, folder / "store", model, **paths, data__task=task, data__classes=NAMES[task], data__text_columns=["a"],
        training__epochs=None, training__max_steps=1,
    )  # fmt: skip
    run = train(job, silent()).key
    return job, run, evaluate_run(job, run, silent())


@pytest.mark.parametrize("task", once("tokens", "multi-label", "classification", "regression"))
def test_figures_are_of_the_examples_that_have_a_label(
    task: str, pretrained: Path, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    rows, marks = rows_of(task)[:20], WITHHELD[task]
    bare = [hide(row, marks[n % len(marks)]) for n, row in enumerate(rows)]
    _, _, alone = measure(task, [row for n, row in enumerate(rows) if n % 3], tmp_path, pretrained)
    caplog.clear()
    job, run, among = measure(task, [row if n % 3 else bare[n] for n, row in enumerate(rows)], tmp_path, pretrained)
    assert among.groups["test"].figures == pytest.approx(alone.groups["test"].figures, abs=1e-5)
    assert among.classification.get("test") == alone.classification.get("test")
    told = "7 of 20 examples of the test split have no label: all are predicted, but metrics use only the other 13"
    assert told in caplog.text
    folder = Path(job.store) / run
    lines = (folder / "predictions" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in rows]
    make_report(Store(job.store), run)
    assert "13 of 20 test examples: " in (folder / "report.html").read_text()
    _, _, none = measure(task, bare, tmp_path, pretrained)
    assert set(none.groups) == {"validation"}, "the test files of GLUE have no label at all"
