"""When figures of fine-tuned models are compared: if they are of the same examples, with whatever tokenizer."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.labelled_data import as_csv, as_jsonl, flat_records, job_of, prepared, records, saved_set, written
from tests.trainer.results import a_result
from trainer.config.kinds import KINDS
from trainer.records.basis import TextBasis
from trainer.records.evaluations import Scores
from trainer.registry.compare_runs import compare_results
from trainer.registry.compared_runs import ComparedRun
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store

PRETRAINING, FINE_TUNING, *_ = KINDS

APART = "Not measured on the same data, so that none of them is the best: "


def rows() -> list[dict[str, Any]]:
    """Records with a second label."""
    return [{**record, "other": number % 3 % 2} for number, record in enumerate(records(60))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Labelled files without a validation split."""
    written(tmp_path / "raw" / "train.jsonl", as_jsonl(rows()))
    written(tmp_path / "raw" / "test.jsonl", as_jsonl(rows()[:20]))
    return tmp_path / "raw"


def measured(letter: str, store: Path, model: Path, loss: float, **options: Any) -> ComparedRun:
    """A fine-tuned run on a real encoded set, with these losses."""
    job = job_of(store, **options)
    key = prepared(job, model).key
    config = {"job": job.model_dump(mode="json"), "data": {"key": key}}
    sources = {key: read_manifest(Store(str(store)), key, "encoded")}
    return ComparedRun(
        letter=letter, key=f"runs/{letter}", entry=FINE_TUNING, state="finished", config=config, plan={},
        environment={}, records=[], evaluation=a_result({split: {"loss": loss} for split in ("validation", "test")}),
        model_config={}, parameters=None, sources=sources,
    )  # fmt: skip


def files(folder: Path) -> dict[str, Any]:
    return {"source": "jsonl", "train": [f"{folder}/train.jsonl"], "test": [f"{folder}/test.jsonl"]}


def note(*runs: ComparedRun) -> str:
    return compare_results(runs).note


def test_a_cut_split_is_the_same_with_another_tokenizer_and_from_another_folder(
    folder: Path, bert: Path, gpt2: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    one = measured("A", tmp_path / "store", bert, 0.5, **files(folder))
    two = measured("B", tmp_path / "store", gpt2, 0.4, **files(folder))
    three = measured("C", tmp_path / "other", gpt2, 0.3, max_length=24, **files(moved))
    assert (
        one.encoded
        and two.encoded
        and one.encoded.details["tokenizer_sha256"] != two.encoded.details["tokenizer_sha256"]
    )
    assert note(one, two, three) == "* marks the best."


def test_a_set_whose_manifest_says_less_of_its_making_is_compared_too(folder: Path, bert: Path, tmp_path: Path) -> None:
    now, old = (measured(letter, tmp_path / "store", bert, 0.5, **files(folder)) for letter in "AB")
    assert old.encoded is not None
    source = {key: old.encoded.details["source"][key] for key in ("identity", "validation_cut")}
    old.sources[old.config["data"]["key"]] = old.encoded.model_copy(
        update={"details": {**old.encoded.details, "source": source}}
    )
    assert note(now, old) == "* marks the best."


def test_a_split_that_is_cut_otherwise_is_another_and_one_of_its_own_files_is_not(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    one = measured("A", tmp_path / "store", bert, 0.5, **files(folder))
    two = measured("B", tmp_path / "store", bert, 0.4, validation_fraction=0.3, **files(folder))
    assert note(one, two) == f"{APART}loss, validation. * marks the best."
    written(folder / "train.jsonl", as_jsonl([*rows()[:-1], {**rows()[-1], "label": 0}]))
    assert (
        note(one, measured("B", tmp_path / "store", bert, 0.4, **files(folder)))
        == f"{APART}loss, validation. * marks the best."
    )


def test_the_same_texts_with_other_labels_are_other_examples(folder: Path, bert: Path, tmp_path: Path) -> None:
    one = measured("A", tmp_path / "store", bert, 0.5, **files(folder))
    two = measured("B", tmp_path / "store", bert, 0.4, label_column="other", **files(folder))
    assert note(one, two) == f"{APART}loss, validation; loss, test."


def test_a_file_whose_quotes_are_taken_as_text_has_other_examples(bert: Path, tmp_path: Path) -> None:
    path = [written(tmp_path / "rows.csv", as_csv(flat_records(40), "\t"))]
    table = {"source": "csv", "delimiter": "\t", "train": path, "test": path}
    one, two = (measured(letter, tmp_path / "store", bert, 0.5, quoting=letter == "A", **table) for letter in "AB")
    assert note(one, two) == f"{APART}loss, validation; loss, test."


@pytest.mark.parametrize("cut", [True, False])
def test_of_a_saved_data_set_the_share_counts_only_where_it_is_cut(
    cut: bool, bert: Path, gpt2: Path, tmp_path: Path
) -> None:
    splits = {"train": rows(), "test": rows()[:20]} | ({} if cut else {"validation": rows()[20:40]})
    path = {"source": "disk", "path": saved_set(tmp_path, splits)}
    one = measured("A", tmp_path / "store", bert, 0.5, **path)
    assert note(one, measured("B", tmp_path / "store", gpt2, 0.4, **path)) == "* marks the best."
    other = measured("B", tmp_path / "store", gpt2, 0.4, validation_fraction=0.3, **path)
    assert note(one, other) == (f"{APART}loss, validation. * marks the best." if cut else "* marks the best.")


def language_model(letter: str, loss: float, bits: float, tokenizer: str) -> ComparedRun:
    """A pretrained run, measured on a text with this tokenizer."""
    figures = {"loss": loss, "perplexity": 2.7**loss, "bits_per_byte": bits}
    basis = TextBasis(
        held_out={"code": "ab"},
        shards=[f"code-{tokenizer}"],
        tokenizer=tokenizer,
        keeps_text=True,
        context=32,
        precision="fp32",
    )
    total = Scores(figures=figures)
    return ComparedRun(
        letter=letter, key=f"runs/{letter}", entry=PRETRAINING, state="finished",
        config={"job": {"evaluation": {}, "training": {}}, "data": {"shards": []}}, plan={}, environment={}, records=[],
        evaluation=a_result({"code": figures}, by="corpus", total=total, measured_on=basis),
        model_config={}, parameters=None, sources={},
    )  # fmt: skip


def test_of_models_with_different_tokenizers_the_best_by_bits_a_byte_is_marked_and_by_loss_none_is() -> None:
    found = compare_results([language_model("A", 5.0, 2.0, "large"), language_model("B", 4.0, 2.5, "small")])
    assert found.note == f"{APART}loss, all; perplexity, all; loss, code; perplexity, code. * marks the best."
    assert found.table is not None
    rows = {row[0]: row[1:] for row in found.table.rows}
    assert rows["bits_per_byte, all"] == ["2.0000 *", "2.5000  "] and rows["loss, all"] == ["5.0000  ", "4.0000  "]
    same = compare_results([language_model("A", 5.0, 2.0, "large"), language_model("B", 4.0, 1.5, "large")])
    assert same.note == "* marks the best."
