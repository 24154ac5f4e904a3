"""The files of GLUE as they are: without a header, with other columns for test, with scores for labels."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.trainer.labelled_data import as_csv, as_jsonl, as_plain_tsv, read, records, written
from trainer.common.errors import CorpusError, RecordError
from trainer.config.labelled import LabelledDataConfig

SENTENCES = [
    f"The {noun} {verb} ."
    for noun in ("cat", '"dog', "bird", "fish")
    for verb in ("sleeps", "sleep", "ran", "have run")
]


def cola(folder: Path) -> dict[str, Any]:
    """Train and dev of four columns without a header, test of two with one."""
    lines = [f"gj04\t{n % 2}\t{'*' if n % 2 == 0 else ''}\t{text}" for n, text in enumerate(SENTENCES)]
    written(folder / "train.tsv", "\n".join(lines[:10]) + "\n")
    written(folder / "dev.tsv", "\n".join(lines[10:]) + "\n")
    written(folder / "test.tsv", "index\tsentence\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(SENTENCES)))
    return {
        "source": "csv", "train": [f"{folder}/train.tsv"], "validation": [f"{folder}/dev.tsv"],
        "test": [f"{folder}/test.tsv"],
        "text_columns": ["sentence"], "id_column": None,
    }  # fmt: skip


COLUMNS = ["source", "label", "mark", "sentence"]


def test_files_without_a_header_are_read_by_the_names_that_columns_gives(tmp_path: Path) -> None:
    options = cola(tmp_path)
    empty = written(tmp_path / "empty.tsv", "")
    found = read(**{**options, "train": [*options["train"], empty]}, columns=COLUMNS)
    texts = [(text,) for text in SENTENCES]
    assert (found.texts["train"], found.texts["validation"], found.texts["test"]) == (texts[:10], texts[10:], texts)
    assert found.labels == {"train": [0, 1] * 5, "validation": [0, 1] * 3, "test": [-1] * 16}
    assert found.dropped == ["source", "mark", "index"]


def test_a_test_file_without_a_header_and_without_labels_is_taken_as_it_is(tmp_path: Path) -> None:
    options = {**cola(tmp_path), "columns": COLUMNS}
    lines = [f"gj04\t*\t{text}" for text in SENTENCES]
    written(tmp_path / "test.tsv", "\n".join(lines) + "\n")
    found = read(**options)
    assert found.texts["test"] == [(text,) for text in SENTENCES]
    assert found.labels["test"] == [-1] * 16
    assert found.dropped == ["source", "mark"]
    written(tmp_path / "test.tsv", "\n".join([*lines[:3], f"gj04\t1\t*\t{SENTENCES[0]}"]) + "\n")
    with pytest.raises(RecordError, match=r"test\.tsv: line 4: 4 columns, `columns` without the label has 3"):
        read(**options)
    with pytest.raises(
        CorpusError,
        match=r"has no column 'label'; it has source, mark, sentence: its first line has 3 columns, and `columns` "
        r"has 4",
    ):
        read(**{**options, "train": options["test"]})


def test_an_id_column_names_examples_where_it_exists(tmp_path: Path) -> None:
    options = {**cola(tmp_path), "columns": COLUMNS, "id_column": "index"}
    written(tmp_path / "test.tsv", "index\tsentence\n" + "".join(f"t{n}\t{text}\n" for n, text in enumerate(SENTENCES)))
    found = read(**options)
    assert found.ids["train"] == [str(n) for n in range(10)]
    assert found.ids["test"] == [f"t{n}" for n in range(16)]
    with pytest.raises(CorpusError, match=r"train\.tsv has no column 'number'; it has source, label, mark, sentence"):
        read(**{**options, "id_column": "number"})
    more = written(tmp_path / "more.tsv", "sentence\nAnd one more .\n")
    with pytest.raises(CorpusError, match="some files of the test split have the column 'index' and others do not"):
        read(**{**options, "test": [*options["test"], more]})


def test_a_file_without_a_header_is_not_taken_for_one_with_a_header(tmp_path: Path) -> None:
    options = cola(tmp_path)
    with pytest.raises(CorpusError, match=r"train\.tsv has no column 'sentence'; .* list its columns in `columns`"):
        read(**options)
    with pytest.raises(RecordError, match=r"train\.tsv: line 1: 4 columns, `columns` has 3"):
        read(**options, columns=COLUMNS[1:])
    written(tmp_path / "train.tsv", "Source\tLabel\tMark\tText\n" + (tmp_path / "train.tsv").read_text())
    with pytest.raises(
        CorpusError, match=r"train\.tsv: line 1 looks like a header, because it has 'Source'; remove `columns`"
    ):
        read(**options, columns=COLUMNS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": ["a", "b", "a"]}, "columns contains 'a' twice"),
        ({"columns": ["b", "label"]}, "columns lacks 'a', which is one of text_columns"),
        ({"columns": ["a", "label"], "source": "jsonl"}, "columns requires source csv, not .jsonl."),
    ],
)
def test_columns_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LabelledDataConfig.model_validate({"source": "csv", "train": ["a.csv"], "text_columns": ["a"], **changes})


def test_an_id_that_repeats_is_refused_or_counted(tmp_path: Path) -> None:
    rows = records(9)
    rows[6]["id"] = rows[2]["id"]
    parts = [written(tmp_path / f"{n}.jsonl", as_jsonl(part)) for n, part in enumerate((rows[:5], rows[5:]))]
    options: dict[str, Any] = {"source": "jsonl", "train": parts, "validation": parts[:1]}
    with pytest.raises(
        RecordError, match=rf"1\.jsonl: line 2: column 'id': 'x002' is also the id of {parts[0]}: line 3; ids must"
    ):
        read(**options)
    found = read(**options, max_bad_records=1)
    assert found.ids["train"] == [f"x00{n}" for n in (0, 1, 2, 3, 4, 5, 7, 8)]
    assert found.bad == {"train": 1, "validation": 0}
    assert read(**{**options, "id_column": None}).ids["train"] == [str(n) for n in range(9)]


def test_an_id_that_is_missing_is_a_bad_record(tmp_path: Path) -> None:
    rows = records(6)
    rows[3]["id"] = None
    for kind, pack in (("jsonl", as_jsonl), ("csv", as_csv)):
        path = written(tmp_path / f"a.{kind}", pack(rows))
        with pytest.raises(RecordError, match="column 'id' is empty; remove id_column"):
            read(source=kind, train=[path], validation=[path])
        found = read(source=kind, train=[path], validation=[path], max_bad_records=1)
        assert found.ids["train"] == ["x000", "x001", "x002", "x004", "x005"]


def labelled(tmp_path: Path, labels: list[Any], kind: str = "csv", **options: Any) -> list[str] | None:
    """The classes of a file with these labels."""
    pack = {"csv": as_csv, "tsv": as_plain_tsv, "jsonl": as_jsonl}[kind]
    rows = [{"id": n, "a": "x", "b": "y", "label": label} for n, label in enumerate(labels)]
    path = written(tmp_path / f"a.{kind}", pack(rows))
    return read(source="jsonl" if kind == "jsonl" else "csv", train=[path], validation=[path], **options).classes


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_scores_are_no_classes_where_regression_was_forgotten(kind: str, tmp_path: Path) -> None:
    for labels in (["0.0", "2.5", "5.0"], ["1.0", "0.0", "1.0"], ["1e3", "2.5e-1", "-.5"]):
        with pytest.raises(
            CorpusError, match=r"holds numbers with a fraction, such as '.*set task to regression, or list them"
        ):
            labelled(tmp_path, labels, kind)
    with pytest.raises(
        RecordError, match=r"line 5: column 'label': '2.5' is not a class \(for numbers, set task to regression\)"
    ):
        labelled(tmp_path, ["0", "1", "0", "2.5", "1"], kind)
    assert labelled(tmp_path, ["0", "1", "0", "2.5", "1"], kind, max_bad_records=1) == ["0", "1"]
    assert labelled(tmp_path, ["0.0", "2.5"], kind, task="regression") is None
    assert labelled(tmp_path, ["3.10", "3.9"], kind, classes=["3.9", "3.10"]) == ["3.9", "3.10"]
    with pytest.raises(RecordError, match=r"line 4: column 'label': '3\.11' is not a class"):
        labelled(tmp_path, ["3.10", "3.9", "3.11"], kind, classes=["3.9", "3.10"])


def test_scores_in_json_are_no_classes_either(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"such as 0.5, which cannot be classes: set task to regression"):
        labelled(tmp_path, [0.5, 2.5], "jsonl")
    with pytest.raises(
        RecordError, match=r"line 2: column 'label': 2.5 is not a class \(for numbers, set task to regression\)"
    ):
        labelled(tmp_path, [0.0, 2.5, 2.0, 1.0], "jsonl")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_class_without_an_example_is_refused_unless_it_is_named(kind: str, tmp_path: Path) -> None:
    line = 9 if kind == "csv" else 8
    with pytest.raises(
        CorpusError,
        match=r"holds 0, 1, 7 in train; as ids from 0 these mean 8 classes, but 2, 3, 4, 5, 6 have no example. 7 "
        rf"is first at .*a\.{kind}: line {line}\. Correct the labels, or list the classes",
    ):
        labelled(tmp_path, [0, 1, 0, 1, 0, 1, 0, 7, 1, 0], kind)
    with pytest.raises(
        CorpusError, match="holds 1, 2 in train; as ids from 0 these mean 3 classes, but 0 has no example"
    ):
        labelled(tmp_path, [1, 2, 1, 2], kind)
    assert labelled(tmp_path, [1, 2, 1, 2], kind, classes=["1", "2"]) == ["1", "2"]
    assert labelled(tmp_path, [1, 2, 1, 2], kind, classes=["no", "perhaps", "yes"]) == ["no", "perhaps", "yes"]


def test_names_that_are_slips_of_the_pen_for_others_are_refused_unless_they_are_named(tmp_path: Path) -> None:
    for labels, message in (
        (["yes", "no", "Yes"], "holds 'Yes' and 'yes', which differ only in case, blanks or their form in Unicode"),
        (["yes", "no", "no "], "holds 'no' and 'no ', which differ only in case, blanks or their form in Unicode"),
        (["0", "1", "x"], r"holds integers \('0', '1'\) and other texts \('x'\): correct them"),
    ):
        for kind in ("csv", "jsonl"):
            with pytest.raises(CorpusError, match=message):
                labelled(tmp_path, labels, kind)
            assert labelled(tmp_path, labels, kind, classes=sorted(labels)) == sorted(labels)
    with pytest.raises(RecordError, match="line 3: column 'label': no label; the classes are 'no', 'yes'"):
        labelled(tmp_path, ["yes", "  ", "no"])
