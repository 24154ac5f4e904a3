"""Reports of small fine-tuned runs: two and three classes, numbers, with and without a labelled test split."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import yaml

from tests.trainer.report_runs import (
    HOSTILE,
    RUN,
    Page,
    page,
    publish,
    publish_checkpoint,
    safetensors,
    step_record,
    write_records,
)
from tests.trainer.results import a_result
from trainer.config.labelled import FinetuneJob
from trainer.data.step_plan import make_tuning_plan
from trainer.kinds.kind import identify_run
from trainer.kinds.labelled.evaluate import MATRIX_CLASSES, classify
from trainer.kinds.labelled.page import confusion_table
from trainer.models.pretrained import Checkpoint, digest_files
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.report import make_report
from trainer.store.artifact_files import find_damage
from trainer.store.manifest import digest_file
from trainer.store.storage import Store
from trainer.training.identity import claim_run, final_manifest
from trainer.training.metrics_reader import read_records

STEPS = 20
FIGURES = {"classification": ["accuracy", "f1"], "regression": ["pearsonr"]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def split_details(examples: int, classes: list[str] | None, labelled: bool = True) -> dict[str, Any]:
    """What the manifest of an encoded set says of a split."""
    known = examples if labelled else 0
    counted = {"examples": examples, "tokens": 12 * examples, "longest": 16, "truncated": 3, "bad_records": 1}
    counted["labelled"] = known
    if classes is None:
        return {**counted, "target": {"mean": 2.5, "min": 0.25, "max": 5.0} if labelled else None}
    shares = [known - (len(classes) - 1) * (known // len(classes)), *[known // len(classes)] * (len(classes) - 1)]
    return {**counted, "class_counts": dict(zip(classes, shares, strict=True))}


def classification(classes: list[str], confusion: list[list[int]]) -> dict[str, Any]:
    figures = {"precision": 0.8, "recall": 0.625, "f1": 0.702}
    each = [{"name": name, **figures, "support": sum(row)} for name, row in zip(classes, confusion, strict=True)]
    return {"confusion": confusion, "classes": each}


def finetune(
    store: Store,
    classes: list[str] | None,
    test: bool | None = True,
    after: float = 0.75,
    best: int | None = None,
    steps: int = STEPS,
    duplicates: int = 0,
    **changes: Any,
) -> None:
    """Write a finished fine-tuning run: `test` says whether that split is labelled, None that there is none."""
    task = "classification" if classes else "regression"
    splits = {"train": split_details(160, classes), "validation": split_details(40, classes)}
    splits["validation"]["in_train"] = duplicates
    splits |= {} if test is None else {"test": split_details(30, classes, labelled=test)}
    details = {
        "name": "pairs", "task": task, "classes": classes, "text_columns": ["first", "second"], "label_column": "label",
        "dropped_columns": ["idx"], "max_length": 16, "pad_token": "[PAD]", "pad_id": 0, "vocab_size": 300,
        "pad_is_end": False, "divider": None, "source": {"identity": {}, "validation_cut": True},
        "tokenizer_sha256": "0" * 64, "splits": splits,
    }  # fmt: skip
    files = {"tokenizer.json": b"{}", **{f"{split}.arrow": b"" for split in splits}}
    data = publish(store, "encoded/pairs-00pairs", "encoded", files, details)
    job = FinetuneJob.model_validate(
        {
            "store": store.url,
            "run": "tiny",
            "data": {
                "name": "pairs", "source": "jsonl", "train": ["/data/train.jsonl"], "task": task,
                **changes.pop("data", {}),
                "text_columns": details["text_columns"],
            },
            "model": {"pretrained": "bert-base-uncased", **changes.pop("model", {})},
            "training": {"max_steps": STEPS, **changes.pop("training", {})},
            "evaluation": {"best_by": FIGURES[task][0]},
        }
    )  # fmt: skip
    run = identify_run(job, data)
    claim_run(store, run, job, data)
    plan = make_tuning_plan(job, {name: split["examples"] for name, split in splits.items()}, 1)
    write_sealed(store, f"{RUN}/plan.json", plan.model_dump())
    write_sealed(store, f"{RUN}/environment.json", {"device": "CPU", "ranks": 1, "packages": {"numpy": "2.4.6"}})

    def scores(value: float) -> dict[str, float]:
        return {"loss": 1 - value, **dict.fromkeys(FIGURES[task], value)}

    evaluations = {0: scores(0.5), 10: scores(0.9), steps: scores(after)}
    of = {"positive": classes[1]} if classes and len(classes) == 2 else {}
    records = [
        {"kind": "evaluation", "step": step, **found, "examples": 40, **of} for step, found in evaluations.items()
    ]
    write_records(store, [*records, step_record(10), step_record(steps)])
    publish_checkpoint(store, 10, scores(0.9), ("checkpoint-best",))
    publish_checkpoint(store, steps, scores(after), ("checkpoint-last",))
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 320}
    weights = safetensors({"wte": [320, 8], "classifier": [len(classes or [0]), 8]})
    final = {"run": run.fingerprint, "step": best}
    publish(
        store,
        f"{RUN}/final",
        "model",
        {"config.json": json.dumps(config).encode(), "model.safetensors": weights},
        final,
    )
    labelled = ["validation", *(["test"] if test else [])]
    confusion = [[9 if a == b else 1 for b in range(len(classes or []))] for a in range(len(classes or []))]
    result = a_result(
        {split: scores(after) for split in labelled}, key=f"{RUN}/eval.json",
        checkpoint=f"{RUN}/final", data=[data.key],
        classification={split: classification(classes, confusion) for split in labelled} if classes else {},
        predictions={f"{RUN}/predictions/{split}.jsonl": "0" * 64 for split in splits if split != "train"},
    )  # fmt: skip
    write_sealed(store, f"{RUN}/eval.json", result.recorded())


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is named like a model of the hub is one, and fetched."""
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    of_hub = Checkpoint(str(folder), digest_files(folder), None, "hub")
    monkeypatch.setattr("trainer.models.pretrained._fetch_from_hub", lambda store, name: of_hub)


def card(store: Store) -> str:
    return store.read_bytes(f"{RUN}/final/README.md").decode()


def front_matter(store: Store) -> dict[str, Any]:
    matter: dict[str, Any] = yaml.safe_load(card(store).split("---\n", 2)[1])
    return matter


def code_of(store: Store) -> str:
    return card(store).split("```python\n")[1].split("```")[0]


def cells(text: str, first: str) -> list[list[str]]:
    """The cells of the card's table rows that begin with this cell."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] == first]


def test_page_tells_a_classifier(store: Store) -> None:
    finetune(store, ["other", "match"])
    report = make_report(store, RUN)
    text = page(store)
    assert "Validation accuracy 0.5000 → 0.7500, loss 0.5000 → 0.2500 in 20 steps." in text
    assert (
        "Finished model on 40 validation examples: accuracy 0.7500, loss 0.2500, f1 0.7500; on 30 test examples:"
        in text
    )
    for part in [
        "0.5000 before training",
        "bert-base-uncased, fine-tuned",
        "0 other, 1 match",
        "first, second → input_ids",
    ]:
        assert part in text
    assert f"{RUN}/predictions/test.jsonl and {RUN}/predictions/validation.jsonl" in text
    assert text.count("<svg") == 6
    assert text.count('class="hit"') == 4
    assert "| validation | 40 | 0.7500 | 0.2500 | 0.7500 |" in report.markdown
    assert "| train | 160 | 160 | 1,920 | 12.0 | 16 | 3 | 1.88 % | 1 |" in report.markdown
    assert make_report(store, RUN).reused


def test_figures_of_another_class_than_the_finished_models_are_not_said_to_be_before_training(store: Store) -> None:
    finetune(store, ["no", "yes"])
    result = read_sealed(store, f"{RUN}/eval.json")
    write_sealed(store, f"{RUN}/eval.json", {**result, "positive": {"f1": "no"}})
    make_report(store, RUN)
    assert "<strong>0.7500</strong><span>– before training</span>" in page(store), "that one is of yes"
    assert "f1 of &#39;yes&#39;" in page(store), "in training"


def test_figures_of_two_classes_are_not_compared(store: Store) -> None:
    finetune(store, ["no", "yes"])
    result = read_sealed(store, f"{RUN}/eval.json")
    write_sealed(store, f"{RUN}/eval.json", {**result, "positive": {"f1": "no"}})
    records = read_records(store, RUN)
    write_records(store, [{**each, "positive": "no"} if each["step"] == STEPS else each for each in records])
    make_report(store, RUN)
    assert cells(card(store), "f1")[0][1:] == ["–", "0.7500", "–"]
    assert cells(card(store), "accuracy")[0][1:] == ["0.5000", "0.7500", "+0.2500"]


def test_page_tells_what_classes_count_in_the_loss(store: Store) -> None:
    finetune(store, ["other", "match"], training={"class_weights": "balanced", "label_smoothing": 0.1})
    make_report(store, RUN)
    for told in ("balanced: other 1, match 1", "Label smoothing"):
        assert told in page(store)


def test_card_of_a_classifier_has_front_matter_and_code_that_compiles(store: Store) -> None:
    finetune(store, ["a", "b", "c"])
    make_report(store, RUN)
    assert front_matter(store) == {
        "library_name": "transformers", "pipeline_tag": "text-classification", "metrics": ["accuracy", "f1"],
        "tags": ["headrace", "text-classification", "bert"], "base_model": "bert-base-uncased", "model-index": [ANY],
    }  # fmt: skip
    text = card(store)
    assert "fine-tuned from bert-base-uncased on 160 examples in 20 optimizer steps" in text
    assert cells(text, "b") == [
        ["b", "53", "33.1 %", "13", "32.5 %", "10", "33.3 %"],
        *2 * [["b", "1", "9", "1", "11"], ["b", "0.8000", "0.6250", "0.7020", "11"]],
    ]  # fmt: skip
    assert find_damage(store, f"{RUN}/final", final_manifest(store, RUN)) == {}
    compile(code_of(store), "card", "exec")


def test_regression_has_numbers_and_no_classes(store: Store) -> None:
    finetune(store, None)
    make_report(store, RUN)
    text = page(store)
    assert "Validation pearsonr 0.5000 → 0.7500, loss 0.5000 → 0.2500 in 20 steps." in text
    assert "loss (squared error)" in text
    assert "one number" in text
    assert "<h2>Classes" not in text
    assert cells(card(store), "validation")[0][-3:] == ["2.5", "0.25", "5"]
    assert "logits.item()" in code_of(store)
    assert front_matter(store)["tags"] == ["headrace", "text-regression", "bert"]
    compile(code_of(store), "card", "exec")


@pytest.mark.parametrize("classes", [["no", "yes"], None], ids=["classes", "numbers"])
def test_unlabelled_test_split_is_predicted_and_has_no_figures(store: Store, classes: list[str] | None) -> None:
    finetune(store, classes, test=False)
    make_report(store, RUN)
    nothing = ["–"] * (3 if classes else 2)
    assert ["test", "30", *nothing] in cells(card(store), "test")
    assert "predictions/test.jsonl" in page(store)
    assert "test examples" not in page(store)


def test_run_without_test_split_is_reported(store: Store) -> None:
    finetune(store, ["no", "yes"], test=None)
    make_report(store, RUN)
    assert cells(card(store), "test") == []
    assert "40 validation</span>" in page(store)


def test_names_are_shown_as_text(store: Store) -> None:
    classes = [HOSTILE, "a|b *c*", "`d` \\ $x$"]
    finetune(store, classes)
    report = make_report(store, RUN)
    text = page(store)
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quoted&#34;\n\tindented" in text
    assert not Page(text).elements & {"script", "link", "iframe", "img", "object"}
    for markdown in (card(store), report.markdown):
        assert "<script" not in markdown
    widths = {len(row) for row in cells(card(store), "a\\|b \\*c\\*")}
    assert widths == {5, 7}
    compile(code_of(store), "card", "exec")


def test_figures_that_are_undefined_are_dashes(store: Store) -> None:
    finetune(store, None, after=math.nan)
    make_report(store, RUN)
    text = page(store)
    assert "Validation pearsonr 0.5000 → –, loss 0.5000 → – in 20 steps." in text
    assert ">nan<" not in text
    assert "nan |" not in card(store)
    assert "model-index" not in front_matter(store)
    assert make_report(store, RUN).reused


def test_best_checkpoint_as_the_final_model_is_told_by_its_step(store: Store) -> None:
    finetune(store, ["no", "yes"], best=10)
    make_report(store, RUN)
    text = page(store)
    assert "Validation accuracy 0.5000 → 0.9000, loss 0.5000 → 0.1000 at step 10, the best of 20 steps." in text
    assert "fine-tuned from bert-base-uncased on 160 examples in 10 optimizer steps" in card(store)
    assert "the best, at step 10" in text


def test_run_that_stopped_early_is_told_by_the_steps_it_made(store: Store) -> None:
    finetune(store, ["no", "yes"], steps=15)
    make_report(store, RUN)
    assert "in 15 steps." in page(store)
    assert "stopped early, after 15" in page(store)


def test_what_flatters_is_said(store: Store) -> None:
    finetune(store, ["no", "yes"], duplicates=7)
    make_report(store, RUN)
    assert "7 validation examples are in train as well, so the validation figures are too good." in page(store)


def test_many_classes_show_the_most_frequent_mistakes(store: Store) -> None:
    finetune(store, [f"class-{number}" for number in range(40)])
    make_report(store, RUN)
    text = page(store)
    assert "The most frequent mistakes." in text
    assert 'class="hit"' not in text
    assert "class-23 and 16 more" in text


@pytest.mark.parametrize("things", ["Examples", "Words"])
def test_mistakes_are_counted_in_what_is_classified(things: str) -> None:
    labels = np.arange(60) % 30
    table = confusion_table(
        classify((labels + labels % 2) % 30, labels, [f"class-{number}" for number in range(30)]), things
    )
    assert table.columns == ["Label", "Predicted", things, "Share of the label"]
    assert table.rows[0] == ["class-1", "class-2", "2", "100 %"]


def test_of_very_many_classes_there_is_no_matrix() -> None:
    for classes, rows in ((MATRIX_CLASSES, MATRIX_CLASSES), (MATRIX_CLASSES + 1, 0)):
        labels = np.arange(classes)
        found = classify(labels, labels, [f"class-{number}" for number in range(classes)])
        assert len(found.confusion) == rows and found.classes[-1].f1 == 1


def test_run_without_evaluation_or_metrics_is_reported(store: Store) -> None:
    finetune(store, ["no", "yes"])
    store.delete(f"{RUN}/eval.json")
    report = make_report(store, RUN)
    assert "has not been evaluated" in report.markdown
    assert "There is no evaluation of the finished model" in page(store)
    store.delete(f"{RUN}/metrics.jsonl")
    assert "no metrics were recorded" in make_report(store, RUN).markdown


def test_lineage_names_the_data_and_the_model_it_started_from(store: Store, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text("{}")
    finetune(store, ["no", "yes"], model={"pretrained": str(start)})
    make_report(store, RUN)
    lineage = read_sealed(store, f"{RUN}/lineage.json")
    manifest = digest_file(store.fetch("encoded/pairs-00pairs/manifest.json"))
    assert lineage["encoded"]["manifest_sha256"] == manifest.sha256
    assert lineage["encoded"]["details"]["tokenizer_sha256"] == "0" * 64
    assert "train.arrow" in {file["name"] for file in lineage["encoded"]["files"]}
    digest = digest_file(start / "config.json").sha256
    expected = {"name": str(start), "origin": "folder", "key": None, "files": {"config.json": digest}}
    assert lineage["pretrained"] == expected
    assert set(lineage["evaluation"]) == {"key", "fingerprint", "recipe", "data", "predictions"}
    assert "base_model" not in front_matter(store)


def test_data_of_the_hub_is_named(store: Store) -> None:
    hub = {"source": "hub", "path": "nyu-mll/glue", "subset": "mrpc", "train": ["train"]}
    finetune(store, ["no", "yes"], data=hub)
    make_report(store, RUN)
    assert "data set nyu-mll/glue (mrpc) of the Hugging Face hub" in page(store)
    assert front_matter(store)["datasets"] == ["nyu-mll/glue"]


def test_report_needs_none_of_the_libraries_that_train(store: Store) -> None:
    finetune(store, ["no", "yes"])
    code = (
        f"import sys; from trainer.registry.report import make_report; from trainer.store.storage import Store\n"
        f"make_report(Store({store.url!r}), {RUN!r})\n"
        "assert not {'torch', 'transformers', 'sklearn', 'evaluate', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
