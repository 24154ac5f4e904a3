"""Bad labelled data: one clear message that names the place and what was expected there, or a counted budget."""

import logging
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.labelled_data import (
    as_csv,
    as_jsonl,
    as_parquet,
    bert_folder,
    flat_records,
    job_of,
    opened,
    read,
    records,
    saved_set,
    written,
)
from tests.trainer.raw_files import not_utf8_column
from trainer.common.bad_records import skipped_rows
from trainer.common.errors import CorpusError, RecordError

BAD_RECORDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a null text": ("jsonl", '{"a": null, "b": "y", "label": 0}', {}),
    "no such field": ("jsonl", '{"b": "y", "label": 0}', {}),
    "a number for a text": ("jsonl", '{"a": 7, "b": "y", "label": 0}', {}),
    "two blank texts": ("jsonl", '{"a": " ", "b": "", "label": 0}', {}),
    "half a surrogate pair": ("jsonl", '{"a": "\\ud800", "b": "y", "label": 0}', {}),
    "half a surrogate pair in a label": ("jsonl", '{"a": "x", "b": "y", "label": "\\ud800"}', {}),
    "not JSON": ("jsonl", '{"a"', {}),
    "not an object": ("jsonl", '["x", "y", 0]', {}),
    "a missing label": ("jsonl", '{"a": "x", "b": "y", "label": null}', {}),
    "GLUE's mark of no label": ("jsonl", '{"a": "x", "b": "y", "label": -1}', {}),
    "a label beyond the classes": ("jsonl", '{"a": "x", "b": "y", "label": 2}', {"classes": ["p", "q"]}),
    "an unknown class": ("jsonl", '{"a": "x", "b": "y", "label": "r"}', {"classes": ["0", "1"]}),
    "a list for a label": ("jsonl", '{"a": "x", "b": "y", "label": [0]}', {}),
    "an infinite number": ("jsonl", '{"a": "x", "b": "y", "label": Infinity}', {"task": "regression"}),
    "a word for a number": ("jsonl", '{"a": "x", "b": "y", "label": "six"}', {"task": "regression"}),
    "no number": ("jsonl", '{"a": "x", "b": "y", "label": NaN}', {"task": "regression"}),
    "too few columns": ("csv", "x,y", {}),
    "too many columns": ("csv", "x,y,0,0", {}),
    "bytes that are not UTF-8": ("csv", "\udcff,y,0", {}),
    "a stray quote": ("csv", '"x" x,y,0', {}),
    "an empty label": ("csv", "x,y,", {}),
    "a word among integers": ("csv", "x,y,z", {"classes": ["p", "q"]}),
    "not a number": ("csv", "x,y,nan", {"task": "regression"}),
    "a number of Python": ("csv", "x,y,1_000", {"task": "regression"}),
}
MESSAGES = {
    "a null text": "column 'a' holds no text",
    "no such field": "column 'a' holds no text",
    "a number for a text": "column 'a' holds int, not text",
    "two blank texts": "column 'a' is empty",
    "half a surrogate pair": "column 'a' is not valid UTF-8 at character 0",
    "half a surrogate pair in a label": "column 'label' is not valid UTF-8 at character 0",
    "not JSON": "not valid JSON",
    "not an object": "expected a JSON object, found list",
    "a missing label": "column 'label': no label; the classes are 0, 1",
    "GLUE's mark of no label": "column 'label': -1 is not a class; the classes are 0, 1",
    "a label beyond the classes": "column 'label': 2 is not a class; the classes are 0 .'p'., 1 .'q'.",
    "an unknown class": "column 'label': 'r' is not a class; the classes are 0, 1",
    "a list for a label": "column 'label' holds list, not a label",
    "an infinite number": "column 'label': inf is not a finite number",
    "a word for a number": "column 'label': 'six' is not a finite number",
    "no number": "column 'label': no number",
    "too few columns": "2 columns, the first line has 3",
    "too many columns": "4 columns, the first line has 3",
    "bytes that are not UTF-8": "column 'a' is not valid UTF-8 at character 0",
    "a stray quote": "not valid CSV: ',' expected after '\"'; if quote characters are plain text here, set quoting to",
    "an empty label": "column 'label': no label; the classes are 0, 1",
    "a word among integers": "column 'label': 'z' is not a class; the classes are 0 .'p'., 1 .'q'.",
    "not a number": "column 'label': 'nan' is not a finite number",
    "a number of Python": "column 'label': '1_000' is not a finite number",
}


@pytest.mark.parametrize("what", BAD_RECORDS)
def test_a_bad_record_is_named_by_its_place_or_counted(what: str, tmp_path: Path) -> None:
    kind, line, options = BAD_RECORDS[what]
    good = [{"a": f"x{n}", "b": "y", "label": n % 2} for n in range(9)]
    head, *lines = ((as_csv if kind == "csv" else as_jsonl)(good)).decode().replace("\r", "").splitlines(keepends=True)
    broken = [head, *lines[:4], line + "\n", *lines[4:]]
    clean = written(tmp_path / f"clean.{kind}", "".join([head, *lines]))
    path = written(tmp_path / f"a.{kind}", "".join(broken).encode(errors="surrogateescape"))
    options |= {"source": kind, "id_column": None}
    for split in ("train", "validation"):
        files = {"train": [clean], "validation": [clean], split: [path]}
        with pytest.raises(
            RecordError,
            match=rf"'small', {split} split: {path}: line 6: {MESSAGES[what]}.*max_bad_records is 0: correct",
        ):
            read(**files, **options)
        found = read(**files, **options, max_bad_records=1)
        assert found.bad == {"train": 0, "validation": 0, split: 1}
        assert found.texts[split] == [(row["a"], row["b"]) for row in good]
        assert found.labels[split] == [row["label"] for row in good]


def test_each_split_has_its_own_budget_of_bad_records(tmp_path: Path) -> None:
    lines = as_jsonl(records(9)).decode()
    one, two = (
        written(tmp_path / "one.jsonl", lines + "{\n"),
        written(tmp_path / "two.jsonl", lines + '{\n{"a": "x"}\n'),
    )
    assert read(source="jsonl", train=[one], validation=[one], max_bad_records=1).bad == {"train": 1, "validation": 1}
    assert read(source="jsonl", train=[one], max_bad_records=1, validation_fraction=0.5).bad == {
        "train": 1,
        "validation": 0,
    }
    with pytest.raises(RecordError, match=r"line 11: column 'a' holds no text|line 11: column 'b'.*more than the 1"):
        read(source="jsonl", train=[two], max_bad_records=1)


def test_a_bad_row_of_a_table_is_named_by_its_number(tmp_path: Path) -> None:
    rows = [*records(8), {**records(1)[0], "a": None}]
    path = written(tmp_path / "a.parquet", as_parquet(rows))
    with pytest.raises(RecordError, match=r"a\.parquet: row 8: column 'a' holds no text"):
        read(source="parquet", train=[path])
    with pytest.raises(RecordError, match="saved: train: row 8: column 'a' holds no text"):
        read(source="disk", path=saved_set(tmp_path, {"train": rows}))


def test_a_row_of_a_table_that_is_not_utf8_is_named_by_its_number_or_counted(tmp_path: Path) -> None:
    texts = [b"one", b"two", b"a\xff", b"three"]
    table = pa.table({"a": not_utf8_column(texts), "label": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    datasets.Dataset(table).save_to_disk(str(tmp_path / "saved"))
    common = {"text_columns": ["a"], "id_column": None, "validation_fraction": 0.5}
    for options in (
        {"source": "parquet", "train": [str(tmp_path / "a.parquet")], "validation": [str(tmp_path / "a.parquet")]},
        {"source": "disk", "path": str(tmp_path / "saved"), "validation_fraction": 0.5},
    ):
        with pytest.raises(RecordError, match=r"row 2: byte 1 of a text \(0xff\) is not valid UTF-8"):
            read(**{**common, **options})
        found = read(**{**common, **options}, max_bad_records=1)
        assert found.bad["train"] == 1
        assert {text for each in found.texts.values() for (text,) in each} == {"one", "two", "three"}


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    for kind, pack in (("csv", as_csv), ("jsonl", as_jsonl), ("parquet", as_parquet)):
        path = written(tmp_path / f"a.{kind}", pack(records(4)))
        for wrong in ({"text_columns": ["a", "c"]}, {"label_column": "c"}, {"id_column": "c"}):
            with pytest.raises(CorpusError, match=rf"a\.{kind} has no column 'c'; it has id, a, b, label"):
                read(source=kind, train=[path], **wrong)
    with pytest.raises(CorpusError, match="saved: train has no column 'c'; it has id, a, b, label"):
        read(source="disk", path=saved_set(tmp_path, {"train": records(4)}), label_column="c")


def test_a_column_named_twice_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,a,b,label,a\n1,x,y,0,z\n")
    with pytest.raises(CorpusError, match="the first line has the column 'a' twice"):
        read(source="csv", train=[path])


def test_an_empty_split_is_an_error(tmp_path: Path) -> None:
    good = written(tmp_path / "good.csv", as_csv(records(4)))
    bare = written(tmp_path / "bare.csv", "id,a,b,label\n")
    for split in ("train", "validation", "test"):
        with pytest.raises(CorpusError, match=rf"{split} split is empty: 0 records"):
            read(source="csv", **{"train": [good], "validation": [good], split: [bare]})
    with pytest.raises(CorpusError, match="validation split is empty: 1 records, 1 of them bad"):
        bad = written(tmp_path / "bad.csv", "id,a,b,label\n1,x,y,\n")
        read(source="csv", train=[good], validation=[bad], max_bad_records=1)


def test_labels_that_cannot_be_classes_are_an_error(tmp_path: Path) -> None:
    def error_of(labels: list[Any], **options: Any) -> str:
        path = written(tmp_path / "a.jsonl", as_jsonl(records(len(labels), labels)))
        with pytest.raises(CorpusError) as caught:
            read(source="jsonl", train=[path], validation=[path], **options)
        return str(caught.value)

    assert "has only the class 'yes' in train; at least two classes are needed" in error_of(["yes", "yes"])
    assert "integers up to 700,002 in 3 examples, so they cannot be class ids" in error_of([1, 700_002, 5])
    assert "0.25 is not a class (for numbers, set task to regression)" in error_of([0.25, 1.0])
    assert "has no label in train" in error_of([None, None])


@pytest.mark.parametrize("data", [b"text\n" * 100, b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_file_is_an_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"a\.parquet cannot be read"):
        read(source="parquet", train=[written(tmp_path / "a.parquet", data)])
    with pytest.raises(CorpusError, match=r"a\.csv\.gz cannot be read"):
        read(source="csv", train=[written(tmp_path / "a.csv.gz", data)])


def test_lines_that_end_in_carriage_returns_alone_are_refused_rather_than_taken_for_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,a,b,label\r1,x,y,0\r2,z,w,1\r")
    with pytest.raises(CorpusError, match=r"a\.csv: line 1: not valid CSV: lone carriage return"):
        read(source="csv", train=[path])


def test_a_line_that_is_not_text_is_named_by_its_byte_or_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", as_jsonl(records(8)) + b'{"a": "\xff"}\n')
    with pytest.raises(
        RecordError, match=rf"a\.jsonl: byte {len(as_jsonl(records(8))) + 7} \(0xff\) is not valid UTF-8"
    ):
        read(source="jsonl", train=[path], validation=[path])
    assert read(source="jsonl", train=[path], validation=[path], max_bad_records=1).bad["train"] == 1


def test_skipped_rows_of_labelled_data_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = flat_records(40, ["no", "yes"])
    rows[3] |= {"a": None}
    rows[5] |= {"label": "maybe"}
    rows[7] |= {"id": rows[2]["id"]}
    rows[9] |= {"label": "perhaps"}
    path = written(tmp_path / "train.jsonl", as_jsonl(rows))
    good = written(tmp_path / "validation.jsonl", as_jsonl(flat_records(10, ["no", "yes"])))
    job = job_of(
        tmp_path / "store", source="jsonl", train=[path], validation=[good], classes=["no", "yes"], max_bad_records=4
    )
    with caplog.at_level(logging.WARNING):
        details = opened(job, bert_folder(tmp_path / "bert")).details
    assert details["splits"]["train"]["bad_records"] == 4 and "skipped" not in details["splits"]["validation"]
    first = [
        f"{path}: line 4: column 'a' holds no text",
        f"{path}: line 8: column 'id': 'x002' is also the id of {path}: line 3; ids must differ",
        f"{path}: line 6: column 'label': 'maybe' is not a class of no, yes",
    ]
    found = details["splits"]["train"]["skipped"]
    assert found[:2] == first[:2] and found[2].startswith(first[2].split(" of ")[0])
    told = f"data set small, train split: skipped 4 bad records ({'; '.join(found)}; and 1 more)"
    assert told in caplog.text
    assert [row["where and why"] for row in skipped_rows(details)] == found
    assert {row["bad records skipped"] for row in skipped_rows(details)} == {4}


def test_a_header_of_other_names_beside_columns_is_refused_rather_than_read_as_an_example(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def classes_of(train: str, validation: str, **more: Any) -> list[str] | None:
        paths = {
            split: [written(tmp_path / f"{split}.csv", text)]
            for split, text in (("train", train), ("validation", validation))
        }
        options = {"columns": ["text", "label"], "text_columns": ["text"], "id_column": None}
        return read(source="csv", **paths, **options, **more).classes

    rows = "a,pos\nb,neg\nc,pos\n"
    with pytest.raises(CorpusError, match=r"train\.csv: line 1 looks like a header, .*'target', and 2 files begin"):
        classes_of(f"sentence,target\n{rows}", "sentence,target\nd,pos\n")
    names = ["neg", "pos", "target"]
    assert classes_of(f"sentence,target\n{rows}", "sentence,target\nd,pos\n", classes=names) == names
    assert classes_of(rows, rows) == classes_of(rows, "a,pos\nd,neg\n") == ["neg", "pos"]
    assert "header" not in caplog.text
    assert classes_of(f"sentence,target\n{rows}", "d,pos\n") == names
    assert "line 1 looks like a header, because no other line has the label 'target'; if it is one" in caplog.text
    caplog.clear()
    assert classes_of(f"text,label\n{rows}", "text,label\nd,pos\n") == ["neg", "pos"]
    assert "header" not in caplog.text
