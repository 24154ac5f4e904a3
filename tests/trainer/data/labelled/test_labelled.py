"""Labelled data of every source: texts, labels and splits are as they stand there."""

import errno
import logging
import os
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pytest
from datasets.exceptions import DatasetGenerationError

from tests.trainer.labelled_data import (
    Record,
    as_csv,
    as_jsonl,
    as_parquet,
    as_plain_tsv,
    flat_records,
    read,
    records,
    saved_set,
    written,
)
from tests.trainer.raw_files import PACKINGS
from trainer.common.errors import CorpusError, RecordError
from trainer.data.shards import is_held_out

ODD = ["None", "NA", "null", "nan", "007", "1e5", "2020-01-01 10:00:00", "true", " spaces ", "\\N", "[SEP]"]
"""Texts that are often taken for something else."""

SOURCES: dict[str, tuple[str, Callable[[list[Record]], bytes], dict[str, Any]]] = {
    "csv": ("csv", as_csv, {}),
    "quoted": ("tsv", lambda rows: as_csv(rows, "\t"), {"quoting": True}),
    "plain": ("tsv", as_plain_tsv, {}),
    "jsonl": ("jsonl", as_jsonl, {}),
    "parquet": ("parquet", as_parquet, {}),
}
PACKED = [(name, ending) for name in SOURCES for ending in PACKINGS if name != "parquet" or not ending]


def source_of(name: str) -> str:
    return name if name in ("jsonl", "parquet") else "csv"


@pytest.mark.parametrize(("name", "ending"), PACKED)
def test_every_kind_of_file_gives_the_same_examples(name: str, ending: str, tmp_path: Path) -> None:
    extension, pack, options = SOURCES[name]
    rows = flat_records(40) if name == "plain" else records(40)
    paths = {
        split: [written(tmp_path / f"{split}.{extension}{ending}", PACKINGS[ending](pack(part)))]
        for split, part in (("train", rows[:20]), ("validation", rows[20:30]), ("test", rows[30:]))
    }
    found = read(source=source_of(name), **paths, **options)
    assert [each for split in found.texts.values() for each in split] == [(row["a"], row["b"]) for row in rows]
    assert [each for split in found.ids.values() for each in split] == [row["id"] for row in rows]
    assert [each for split in found.labels.values() for each in split] == [row["label"] for row in rows]
    assert {split: len(each) for split, each in found.texts.items()} == {"train": 20, "validation": 10, "test": 10}
    assert (found.classes, found.dropped) == (["0", "1"], [])


@pytest.mark.parametrize("name", SOURCES)
def test_texts_that_look_like_something_else_stay_text(name: str, tmp_path: Path) -> None:
    extension, pack, options = SOURCES[name]
    pairs = list(zip(ODD, ODD[::-1], strict=True))
    rows = [{"id": text, "a": text, "b": other, "label": n % 2} for n, (text, other) in enumerate(pairs)]
    path = written(tmp_path / f"a.{extension}", pack(rows))
    found = read(source=source_of(name), train=[path], validation=[path], **options)
    assert found.texts["train"] == pairs
    assert found.ids["train"] == ODD


def test_bare_quotes_are_text_where_tabs_divide_columns_or_quoting_is_off(tmp_path: Path) -> None:
    rows = [{"id": n, "a": f'"{n} he said', "b": 'so " what "', "label": n % 2} for n in range(6)]
    path = written(tmp_path / "a.tsv", as_plain_tsv(rows))
    for options in ({}, {"quoting": False}, {"delimiter": "\t"}):
        found = read(source="csv", train=[path], validation=[path], **options)
        assert found.texts["train"] == [(row["a"], row["b"]) for row in rows]
    with pytest.raises(RecordError, match=r"a\.tsv: line 2.*not valid CSV.*set quoting to false"):
        read(source="csv", train=[path], validation=[path], quoting=True)


def test_remote_and_compressed_files_are_read_like_others(tmp_path: Path) -> None:
    rows, base = records(20), f"memory://{uuid.uuid4().hex}"
    for number, part in enumerate((rows[:12], rows[12:])):
        with fsspec.open(f"{base}/part-{number}.jsonl.zst", "wb") as file:
            file.write(PACKINGS[".zst"](as_jsonl(part)))
    found = read(source="jsonl", train=[f"{base}/part-*.jsonl.zst"], validation=[f"{base}/part-1.jsonl.zst"])
    assert found.texts["train"] == [(row["a"], row["b"]) for row in rows]
    with fsspec.open(f"{base}/bad.jsonl", "wb") as file:
        file.write(as_jsonl(rows) + b"{\n")
    with pytest.raises(RecordError, match=r"memory://.*/bad\.jsonl: line 21: not valid JSON"):
        read(source="jsonl", train=[f"{base}/bad.jsonl"])


def test_a_saved_data_set_gives_its_splits_and_class_names(tmp_path: Path) -> None:
    rows = records(30)
    parts = {"train": rows[:15], "validation": rows[15:20], "test": rows[20:25], "extra": rows[25:]}
    folder = saved_set(tmp_path, parts, ["no", "yes"])
    found = read(source="disk", path=folder)
    assert found.classes == ["no", "yes"]
    assert {split: len(each) for split, each in found.ids.items()} == {"train": 15, "validation": 5, "test": 5}
    assert found.texts["test"] == [(row["a"], row["b"]) for row in parts["test"]]
    found = read(source="disk", path=folder, train=["extra", "train"], validation=["test"], test=["validation"])
    assert found.ids["train"] == [row["id"] for row in rows[25:] + rows[:15]]
    assert found.ids["validation"] == [row["id"] for row in rows[20:25]]
    found = read(source="disk", path=folder, train=["train", "validation"], validation_fraction=0.5)
    assert sorted(found.ids["train"] + found.ids["validation"]) == [row["id"] for row in rows[:20]]


def test_a_split_that_one_setting_names_is_no_default_of_another(tmp_path: Path) -> None:
    folder = saved_set(tmp_path / "a", {"train": records(10), "test": records(5)})
    assert {*read(source="disk", path=folder, validation=["test"]).ids} == {"train", "validation"}
    folder = saved_set(tmp_path / "b", {"train": records(10), "validation": records(5)})
    found = read(source="disk", path=folder, test=["validation"], validation_fraction=0.5)
    assert {split: len(each) for split, each in found.ids.items()}["test"] == 5
    assert len(found.ids["train"]) + len(found.ids["validation"]) == 10


def test_a_saved_data_set_without_splits_is_all_train(tmp_path: Path) -> None:
    rows = records(30)
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    found = read(source="disk", path=str(tmp_path / "saved"), validation_fraction=0.3)
    assert sorted(found.ids["train"] + found.ids["validation"]) == [row["id"] for row in rows]


def test_a_split_or_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    folder = saved_set(tmp_path, {"train": records(5), "dev": records(5)})
    with pytest.raises(CorpusError, match="has no split 'validation'; it has train, dev"):
        read(source="disk", path=folder, validation=["validation"])
    with pytest.raises(CorpusError, match=r"data set '[^']*': no file matches '.*nowhere/"):
        read(source="disk", path=str(tmp_path / "nowhere"))
    written(tmp_path / "other" / "a.txt", "text")
    with pytest.raises(CorpusError, match="other cannot be read as a folder written by save_to_disk"):
        read(source="disk", path=str(tmp_path / "other"))


def test_an_empty_file_is_told_with_its_split(tmp_path: Path) -> None:
    written(tmp_path / "train.jsonl", as_jsonl(records(5)))
    written(tmp_path / "none.jsonl", "")
    with pytest.raises(CorpusError, match=r"validation split of data set '[^']*' is empty: 1 file, 0 bytes"):
        read(source="jsonl", train=[str(tmp_path / "train.jsonl")], validation=[str(tmp_path / "none.jsonl")])


def test_a_data_set_is_loaded_as_the_hub_library_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = records(20)
    written(tmp_path / "repository" / "train.jsonl", as_jsonl(rows[:12]))
    written(tmp_path / "repository" / "validation.jsonl", as_jsonl(rows[12:]))
    found = read(source="hub", path=str(tmp_path / "repository"))
    assert found.texts == {
        "train": [(row["a"], row["b"]) for row in rows[:12]], "validation": [(row["a"], row["b"]) for row in rows[12:]]
    }  # fmt: skip


def test_a_hub_that_cannot_be_reached_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    said = r"'no/such/mrpc' cannot be loaded from the Hugging Face hub: .*or use files"
    with pytest.raises(CorpusError, match=said) as failure:
        read(source="hub", path="no/such", subset="mrpc")
    assert not failure.value.transient


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (DatasetGenerationError(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), True),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True),
        (ConnectionError("Couldn't reach 'no/such' on the Hub"), False),
    ],
)
def test_a_disk_that_is_too_full_for_a_data_set_of_the_hub_is_no_bad_input(
    error: Exception, passing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error from (error.args[0] if isinstance(error, DatasetGenerationError) else None)

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(CorpusError, match="cannot be loaded from the Hugging Face hub") as failure:
        read(source="hub", path="no/such")
    assert failure.value.transient is passing


def test_without_validation_data_a_hash_of_both_texts_decides_and_equal_texts_stay_together(tmp_path: Path) -> None:
    rows = [*records(60), *({**row, "id": f"again-{row['id']}"} for row in records(60))]
    path = written(tmp_path / "a.jsonl", as_jsonl(rows))
    found = read(source="jsonl", train=[path], validation_fraction=0.3)
    held = [row for row in rows if is_held_out(f"{row['a']}\0{row['b']}".encode(), 0.3)]
    assert found.ids["validation"] == [row["id"] for row in held]
    assert found.ids["train"] == [row["id"] for row in rows if row not in held]
    assert found.labels["validation"] == [row["label"] for row in held]
    assert not set(found.texts["train"]) & set(found.texts["validation"])
    assert found.in_train == {"validation": 0}
    assert 0.1 < len(held) / len(rows) < 0.5


def test_a_cut_that_leaves_a_side_empty_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", as_jsonl(records(4)))
    with pytest.raises(CorpusError, match="leaves the validation split empty, out of 4 examples; give validation data"):
        read(source="jsonl", train=[path], validation_fraction=1e-9)


def test_an_example_without_an_id_column_is_named_by_its_row(tmp_path: Path) -> None:
    parts = [written(tmp_path / f"{n}.csv", as_csv(records(3))) for n in range(2)]
    found = read(source="csv", train=parts, validation=parts[:1], id_column=None)
    assert found.ids == {"train": ["0", "1", "2", "3", "4", "5"], "validation": ["0", "1", "2"]}
    assert found.dropped == ["id"]


def test_integers_are_ids_and_texts_are_names_that_are_numbered_in_order(tmp_path: Path) -> None:
    def classes_of(labels: list[Any], kind: str = "jsonl", **options: Any) -> tuple[list[str] | None, list[Any]]:
        pack = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet}[kind]
        path = written(tmp_path / f"a.{kind}", pack(records(len(labels), labels)))
        found = read(source=kind, train=[path], validation=[path], **options)
        return found.classes, found.labels["train"]

    for kind in ("csv", "jsonl", "parquet"):
        assert classes_of([1, 0, 2, 1], kind) == (["0", "1", "2"], [1, 0, 2, 1])
        assert classes_of([1, 0, 2, 1], kind, classes=["x", "y", "z"]) == (["x", "y", "z"], [1, 0, 2, 1])
        assert classes_of(["no", "yes", "None"], kind) == (["None", "no", "yes"], [1, 2, 0])
        assert classes_of(["no", "yes"], kind, classes=["yes", "maybe", "no"]) == (["yes", "maybe", "no"], [2, 0])
        assert classes_of([5, 1, 3], kind, classes=["1", "3", "5"]) == (["1", "3", "5"], [2, 0, 1])
        assert classes_of([-1, 1], kind, classes=["-1", "1"]) == (["-1", "1"], [0, 1])
        assert classes_of([0.5, -2, 1e3], kind, task="regression") == (None, [0.5, -2.0, 1000.0])
    for kind in ("csv", "jsonl", "parquet"):  # digits that begin with 0 are a name
        with pytest.raises(CorpusError, match="holds '01' and '1', which differ only in leading zeros"):
            classes_of(["01", "1"], kind)
        assert classes_of(["01", "1"], kind, classes=["01", "1"]) == (["01", "1"], [0, 1])
        assert classes_of(["00", "01", "10"], kind) == (["00", "01", "10"], [0, 1, 2])
        assert classes_of(["01", "00"], kind, classes=["01", "00"]) == (["01", "00"], [0, 1])
    for labels in (["07", "b"], ["7", "b"]):
        with pytest.raises(CorpusError, match=r"holds integers \('0?7'\) and other texts \('b'\)"):
            classes_of(labels, "csv")
    train, other = (written(tmp_path / f"{each}.csv", as_csv(records(4, each))) for each in (("0", "1"), ("0", "01")))
    with pytest.raises(RecordError, match="'01' is not a class; the classes are 0, 1"):
        read(source="csv", train=[train], validation=[other])
    assert classes_of([True, False]) == (["0", "1"], [1, 0])
    assert classes_of([1.0, 0.0], "parquet") == (["0", "1"], [1, 0])
    assert classes_of([Decimal("1"), Decimal("0")], "parquet") == (["0", "1"], [1, 0])
    assert classes_of([Decimal("0.1"), Decimal("-2")], "parquet", task="regression") == (None, [0.1, -2.0])
    for kind in ("csv", "jsonl", "parquet"):  # a class that is so spelt, in whatever file
        for names in (["true", "false"], ["True", "False"]):
            spelt = [str(names[0]), str(names[1])] if kind == "csv" else [True, False]
            assert classes_of(spelt, kind, classes=names) == (names, [0, 1])
        assert classes_of([1.0, 0.0, 1.0], kind, classes=["1.0", "0.0"]) == (["1.0", "0.0"], [0, 1, 0])
    assert classes_of([True, False], classes=["ham", "spam"]) == (["ham", "spam"], [1, 0])
    with pytest.raises(CorpusError, match="differ only in case, blanks or their form in Unicode"):
        classes_of(["caf\u00e9", "cafe\u0301", "tea"])


def test_class_names_in_a_parquet_file_are_found(tmp_path: Path) -> None:
    named = datasets.Dataset.from_list(records(6)).cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    named.to_parquet(str(tmp_path / "a.parquet"))
    files = {"train": [str(tmp_path / "a.parquet")], "validation": [str(tmp_path / "a.parquet")]}
    found = read(source="parquet", **files)
    assert (found.classes, found.labels["train"]) == (["no", "yes"], [0, 1] * 3)
    assert read(source="parquet", **files, classes=["n", "y"]).classes == ["n", "y"]
    with pytest.raises(CorpusError, match=r"'yes' is number 0 of the classes \(yes, no\), but 1 in .*a\.parquet"):
        read(source="parquet", **files, classes=["yes", "no"])
    other = named.cast_column("label", datasets.ClassLabel(names=["yes", "no"]))
    other.to_parquet(str(tmp_path / "b.parquet"))
    with pytest.raises(
        CorpusError, match=r"number the classes differently: .*a\.parquet has no, yes; .*b\.parquet has yes, no"
    ):
        read(source="parquet", train=files["train"], validation=[str(tmp_path / "b.parquet")])


def test_a_text_that_spells_a_class_is_that_class_though_other_files_have_ids(tmp_path: Path) -> None:
    def validation_labels(names: list[str], texts: list[str]) -> list[int]:
        rows = datasets.Dataset.from_list(records(len(names), list(range(len(names)))))
        rows.cast_column("label", datasets.ClassLabel(names=names)).to_parquet(str(tmp_path / "train.parquet"))
        path = written(tmp_path / "validation.parquet", as_parquet(records(len(texts), texts)))
        return read(source="parquet", train=[str(tmp_path / "train.parquet")], validation=[path]).labels["validation"]

    assert validation_labels(["neg", "pos"], ["pos", "neg", "1"]) == [1, 0, 1]
    assert validation_labels(["0", "1", "2"], ["2", "0"]) == [2, 0]
    assert validation_labels(["10", "20", "30"], ["30", "10"]) == [2, 0]
    message = "row 1: column 'label': the text '4' is the name of the class with the id 3, and the id of the class '5'"
    with pytest.raises(RecordError, match=message):
        validation_labels(["1", "2", "3", "4", "5"], ["5", "4"])


def test_a_test_record_may_lack_its_label_be_it_the_first_and_an_id_may_not(tmp_path: Path) -> None:
    rows = records(6)
    paths = {split: [written(tmp_path / f"{split}.jsonl", as_jsonl(rows))] for split in ("train", "validation")}

    def first_lacks(column: str) -> str:
        first = {name: value for name, value in rows[0].items() if name != column}
        return written(tmp_path / f"no-{column}.jsonl", as_jsonl([first, *rows[1:]]))

    found = read(source="jsonl", **paths, test=[first_lacks("label")])
    assert found.labels["test"] == [-1, 1, 0, 1, 0, 1]
    with pytest.raises(RecordError, match="line 2: column 'id' is not in the first record of this file"):
        read(source="jsonl", **paths, test=[first_lacks("id")])


@pytest.mark.parametrize("missing", [-1, None, ""])
def test_a_test_split_may_be_unlabelled(missing: Any, tmp_path: Path) -> None:
    paths = {
        split: [written(tmp_path / f"{split}.jsonl", as_jsonl(records(6, labels)))]
        for split, labels in (("train", ["no", "yes"]), ("validation", ["no", "yes"]), ("test", [missing, "yes"]))
    }
    assert read(source="jsonl", **paths).labels["test"] == [-1, 1] * 3
    written(tmp_path / "test.jsonl", as_jsonl([{key: row[key] for key in ("id", "a", "b")} for row in records(6)]))
    assert read(source="jsonl", **paths).labels["test"] == [-1] * 6


def test_numbers_withheld_from_a_test_split_are_missing(tmp_path: Path) -> None:
    train = [written(tmp_path / "train.csv", as_csv(records(6, [0.5, -1])))]
    test = [written(tmp_path / "test.csv", as_csv(records(6, [-1])))]
    found = read(source="csv", train=train, validation=train, test=test, task="regression")
    assert found.labels["train"] == [0.5, -1.0] * 3
    assert all(label != label for label in found.labels["test"])


def test_what_makes_figures_doubtful_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rows = records(10)
    paths = {
        "train": [written(tmp_path / "train.jsonl", as_jsonl(rows[:6]))],
        "validation": [written(tmp_path / "validation.jsonl", as_jsonl([*rows[4:10:2], {**rows[0], "b": "other"}]))],
    }
    paths["test"] = [written(tmp_path / "test.jsonl", as_jsonl(rows[3:10]))]
    found = read(source="jsonl", **paths, classes=["p", "q", "r"])
    assert found.in_train == {"validation": 1, "test": 3}
    assert caplog.messages == [
        "data set small: every example of the validation split has the class 'p'",
        "data set small: no example of the train split has the class 'r'",
        "data set small: 1 of 4 validation examples are also in train, so metrics on validation are too optimistic",
        "data set small: 3 of 7 test examples are also in train, so metrics on test are too optimistic",
    ]
