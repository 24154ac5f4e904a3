"""Bad raw input: one clear message that names the file, the place and what was expected there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.raw_files import PACKINGS, WHOLE, not_utf8_column, pieces_of, read_all
from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError
from trainer.data.readers import read_documents


def error_of(path: Path, piece_bytes: int = WHOLE, **options: Any) -> str:
    """The message of the error that stops the reading of a file."""
    with pytest.raises(CorpusError) as caught:
        read_all(path, piece_bytes, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


def read_leniently(path: Path, piece_bytes: int = WHOLE, **options: Any) -> tuple[list[str], list[str]]:
    """The documents of a file, and the messages about its bad records."""
    corpus, pieces = pieces_of(path, piece_bytes, **options)
    bad: list[RecordError] = []
    texts = [document.text.decode() for piece in pieces for document in read_documents(piece, corpus, bad.append)]
    return texts, [str(error) for error in bad]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({"format": "text"}, "good\n" * 3),
        ({"format": "text", "separator": "%%"}, "good\n%%\nmore\n"),
        ({"format": "source"}, "good\n" * 3),
        ({"format": "lines"}, "good\n" * 3),
        ({"format": "jsonl"}, '{"text": "good"}\n'),
        ({"format": "csv"}, "text\ngood\n"),
    ],
)
def test_invalid_utf8_is_named_by_file_and_byte(
    options: dict[str, Any], before: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKINGS[ending](before.encode() + b"abc\xff\n"))
    assert f"byte {len(before) + 3} (0xff) is not valid UTF-8" in error_of(path, **options)


@pytest.mark.parametrize("form", ["text", "lines", "jsonl", "csv"])
def test_bytes_are_counted_from_the_files_beginning_a_byte_order_mark_included(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\xff\n" if form != "csv" else b"\xef\xbb\xbftext\n\xff\n")
    assert f"byte {8 if form == 'csv' else 5} (0xff)" in error_of(tmp_path / "a.txt", format=form)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_broken_json_line_is_named_by_its_number(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACKINGS[ending](b'{"text": "one"}\n\n{"text": "two"\n'))
    assert "line 3: not valid JSON" in error_of(path, format="jsonl")


def test_a_broken_json_line_in_a_later_piece_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a line of some length"}\n' * 200 + "{\n")
    assert len(pieces_of(path, 1024, format="jsonl")[1]) > 3
    assert "line 201: not valid JSON" in error_of(path, 1024, format="jsonl")


def test_far_into_a_file_the_lines_before_a_piece_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a line of some length"}\n' * 200 + "{\n")
    monkeypatch.setattr("trainer.data.tables.MAX_RECORD", 4096)
    found = re.search(r"line (\d+) after byte ([\d,]+): not valid JSON", error_of(path, 1024, format="jsonl"))
    assert found is not None
    before = path.read_bytes()[: int(found[2].replace(",", ""))]
    assert before.endswith(b"\n") and before.count(b"\n") + int(found[1]) == 201


def test_errors_are_looked_for_only_if_there_are_bad_records() -> None:
    def read() -> Iterator[RecordError]:
        raise AssertionError("a whole split would be read")
        yield

    BadRecords(0).add_all(0, read())


@pytest.mark.parametrize(
    "line", [b"\0\0\0\0\0", b"[" * 100_000, b'\0{"text": 1}', b'{"text": "\\ud800"}', b'{"a": \xed\xa0\x80}']
)
def test_a_damaged_json_line_is_counted_and_the_others_are_kept(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    texts, bad = read_leniently(path, format="jsonl")
    assert texts == ["one", "two"]
    assert len(bad) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"body": "x", "n": 1}', "line 2: no field 'text'; it has body, n"),
        ("{}", "line 2: no field 'text'; it has none"),
        ('{"text": 7}', "line 2: field 'text' holds int, not text"),
        ('{"text": null}', "line 2: field 'text' holds no text"),
        ('{"text": {"body": "deeper"}}', "holds dict, not text; a field within another is not read: copy the text to "),
        ('["text"]', "line 2: expected a JSON object, found list"),
    ],
)
def test_a_json_record_without_text_says_what_it_holds(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "one"}}\n{line}\n')
    assert problem in error_of(path, format="jsonl")


def test_an_array_in_each_line_is_json_lines_without_objects(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('[{"text": "one"}]\n{"text": "two"}\n')
    assert "line 1: expected a JSON object, found list" in error_of(tmp_path / "a.jsonl", format="jsonl")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            '[{"text": "one"}, {"text": "two"}]',
            "line 1: the file is not JSON Lines: it begins with an array; .*'.\\[]'",
        ),
        ('[\n{"text": "one"},\n{"text": "two"}\n]\n', "line 1: the file is not JSON Lines: it begins with an array"),
        ('\n{\r\n  "text": "one"\r\n}\n', "line 2: the file is not JSON Lines: it begins with an object over several"),
    ],
)
def test_json_in_another_form_is_refused_as_a_whole(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content, newline="")
    with pytest.raises(CorpusError, match=problem):
        read_leniently(tmp_path / "a.json", format="jsonl")


def test_blank_lines_may_come_before_the_names_of_columns(tmp_path: Path) -> None:
    rows = "".join(f"{number},0\n" for number in range(300))
    (tmp_path / "a.csv").write_text(f"\n\ntext,n\n{rows}")
    for piece_bytes in (WHOLE, 1024):
        assert read_all(tmp_path / "a.csv", piece_bytes, format="csv") == [str(number) for number in range(300)]


def test_a_column_whose_name_differs_in_blanks_or_case_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n, text\n1,one\n")
    assert "no column 'text'; its first line has n,  text; did you mean ' text'?" in error_of(
        tmp_path / "a.csv", format="csv"
    )
    (tmp_path / "a.jsonl").write_text('{"Text": "one"}\n')
    assert "line 1: no field 'text'; it has Text; did you mean 'Text'?" in error_of(
        tmp_path / "a.jsonl", format="jsonl"
    )


@pytest.mark.parametrize(("form", "content"), [("csv", "e\u0301,n\na,1\n"), ("jsonl", '{"e\u0301": "a"}\n')])
def test_a_column_whose_name_only_looks_alike_is_named_with_escapes(form: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(content)
    assert r"; did you mean 'e\u0301'?" in error_of(tmp_path / "a", format=form, text_field="\u00e9")


def test_the_message_about_a_record_can_be_written_whatever_its_fields_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"\\ud800": "a"}\n')
    _, (message,) = read_leniently(tmp_path / "a.jsonl", format="jsonl")
    assert r"it has \ud800;" in message and message.encode()


def test_a_csv_row_with_other_columns_than_the_first_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,n\n"one\ntwo",1\nthree\n')
    assert "line 4: 1 columns, the first line has 2" in error_of(path, format="csv")


@pytest.mark.parametrize("bad", [b"a\rb,1\n", b"\xff,1\n", b"1,2,3\n", b'"a\n\xff\n",1\n'])
def test_a_bad_csv_row_is_counted_and_the_others_are_kept(bad: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,n\n" + b"good,0\n" * 300 + bad + b"good,0\n" * 300)
    for piece_bytes in (WHOLE, 1024):
        texts, errors = read_leniently(path, piece_bytes, format="csv")
        assert texts == ["good"] * 600
        assert len(errors) == 1


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,n\none,1\n")
    pq.write_table(pa.table({"body": ["one"], "n": [1]}), tmp_path / "a.parquet")
    assert "no column 'text'; its first line has body, n" in error_of(tmp_path / "a.csv", format="csv")
    assert "no column 'text'; it has body, n" in error_of(tmp_path / "a.parquet", format="parquet")


def test_a_parquet_row_without_text_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    long = [str(list(range(number, number + 500))) for number in range(5)]
    pq.write_table(pa.table({"text": [*long, None, "last"]}), path, row_group_size=2)
    assert len(pieces_of(path, 1024, format="parquet")[1]) > 2
    texts, bad = read_leniently(path, 1024, format="parquet")
    assert texts == [*long, "last"]
    assert bad == [f"{path}: row 5: field 'text' holds no text"]


def test_a_parquet_row_that_is_not_utf8_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [b"text %d" % number for number in range(300)]
    rows[270], rows[299] = b"a\xffb", b"\xe9"
    pq.write_table(pa.table({"text": not_utf8_column(rows)}), path, row_group_size=290)
    texts, bad = read_leniently(path, format="parquet")
    assert texts == [row.decode() for row in rows if row.isascii()]
    where = [f"{path}: row {row}: byte {byte} of a text" for row, byte in ((270, "1"), (299, "0"))]
    assert [error.partition(" (0x")[0] for error in bad] == where
    assert "row 270: byte 1 of a text (0xff) is not valid UTF-8" in error_of(path, format="parquet")


@pytest.mark.parametrize(
    ("kind", "values", "hint"),
    [("bytes", [b"one", b"\xff"], "; convert the column to strings"), ("list", [["a", "b"], ["c"]], "")],
)
def test_a_parquet_column_of_something_else_is_no_text(kind: str, values: list[Any], hint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": values}), path)
    said = [f"{path}: row {row}: field 'text' holds {kind}, not text{hint}" for row in (0, 1)]
    assert read_leniently(path, format="parquet") == ([], said)


def test_a_file_that_is_not_parquet_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("text\n" * 100)
    assert "is not a Parquet file" in error_of(tmp_path / "a.parquet", format="parquet")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_cut_short_is_an_error_not_a_shorter_text(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    packed = PACKINGS[ending](bytes(range(33, 127)) * 100 + b"\n" + str(list(range(3000))).encode())
    path.write_bytes(packed[: len(packed) * 2 // 3])
    assert "cannot be read" in error_of(path, format="lines")
    assert "cannot be read" in error_of(path, format="text")


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_a_file_that_is_not_compressed_as_it_says_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("plain text")
    assert "cannot be read" in error_of(tmp_path / name)


def test_damage_inside_a_parquet_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {number} " * 20 for number in range(500)]}), path)
    data = bytearray(path.read_bytes())
    data[100:300] = bytes(200)
    path.write_bytes(data)
    assert "cannot be read" in error_of(path, format="parquet")


@pytest.mark.parametrize("named", ["*.txt", "b.txt"])
def test_a_link_that_leads_nowhere_is_an_error(named: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"b\.txt cannot be read: it is a link to .*nowhere, which leads nowhere; re"):
        read_all(tmp_path / named)


def test_a_text_without_an_end_of_record_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.tables.MAX_RECORD", 4096)
    monkeypatch.setattr("trainer.data.readers.MAX_RECORD", 4096)
    monkeypatch.setattr("trainer.data.pieces.MAX_RECORD", 4096)
    path = tmp_path / "a.txt"
    path.write_text("0 " * 2**20)
    assert "no record ends within" in error_of(path, 1024)
    assert "no line end within" in error_of(path, 64 * 2**20)
    assert "line 1: longer than" in error_of(path, 64 * 2**20, format="lines")
    path.write_text("line\n" * 1000)
    assert "line 1: no separator line b'%%' within" in error_of(path, separator="%%")
