"""The look at raw text before long work: what is no text is named, with what to do, and good text passes."""

import gzip
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.raw_files import FORMATS, PACKINGS, docstrings
from trainer.common.errors import CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.data.sources import FILES, RECORDS, look_at_text

TEXT = "Some text of two lines,\nand nothing that is not text.\n" * 300
NOISE = random.Random(0)


def look(*paths: Path, **options: Any) -> None:
    values = {"name": "c", "paths": list(map(str, paths)), **options}
    look_at_text(CorpusConfig.model_validate(values), list(map(str, paths)))


def refusal(data: bytes, path: Path, **options: Any) -> str:
    """What is said of a file with some bytes."""
    path.write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        look(path, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (NOISE.randbytes(100_000), "is not valid UTF-8"),
        (TEXT.encode("utf-16"), "is UTF-16, by its byte order mark; convert it to UTF-8, such as by `iconv -f UTF-16"),
        (TEXT.encode("utf-32"), "is UTF-32"),
        (TEXT.encode("utf-16-le"), "convert it, such as by `iconv -f UTF-16LE -t UTF-8`, or leave"),
        (TEXT.encode("utf-16-be"), "convert it, such as by `iconv -f UTF-16BE -t UTF-8`, or leave"),
        (
            ("и так далее " * 900).encode("utf-16-le"),
            "characters are NUL, as in a binary file, or in UTF-16; expected text",
        ),
        ("Grüße\n".encode("latin-1") * 100, "byte 2 (0xfc) is not valid UTF-8"),
        (b"\0\0\0\7" * 9000, "are NUL, as in a binary file, or"),
        (gzip.compress(NOISE.randbytes(9000)), "is compressed by gzip; give it a name that ends in .gz"),
    ],
    ids=["noise", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-16 of Russian", "latin-1", "nulls", "gzip"],
)
@pytest.mark.parametrize("form", ["text", "source", "lines"])
def test_what_is_no_text_is_named_with_what_to_do(data: bytes, says: str, form: str, tmp_path: Path) -> None:
    assert says in refusal(data, tmp_path / "a.txt", format=form)


@pytest.mark.parametrize(
    ("name", "data", "options", "says"),
    [
        (
            "a.csv",
            b"body,n\nx,1\n",
            {"format": "csv"},
            "no column 'text'; its first line has body, n; set text_field",
        ),
        ("a.csv", b"text;n\nx;1\n", {"format": "csv"}, "seem to be separated by semicolons: set delimiter to ';'"),
        ("a.tsv", b"text,n\nx,1\n", {"format": "csv"}, "seem to be separated by commas: set delimiter to ','"),
        ("a.jsonl", b'{"text": ["a", "b"]}\n' * 9, {"format": "jsonl"}, "line 1: field 'text' holds list, not text"),
        ("a.jsonl", b'{"body": "a"}\n', {"format": "jsonl"}, "line 1: no field 'text'; it has body"),
        ("a.jsonl", TEXT.encode("utf-16"), {"format": "jsonl"}, "is UTF-16"),
    ],
    ids=["column", "semicolons", "commas", "lists", "field", "utf-16"],
)
def test_records_without_text_are_refused(name: str, data: bytes, options: Any, says: str, tmp_path: Path) -> None:
    assert says in refusal(data, tmp_path / name, **options)


@pytest.mark.parametrize("options", [{"format": "lines"}, {"separator": "%"}])
def test_lines_that_end_in_carriage_returns_alone_are_warned_of(
    options: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.txt"
    for end in ("\n", "\r\n", "\r"):
        assert not caplog.text
        path.write_bytes(f"one{end}%{end}two{end}".encode())
        look(path, **options)
    assert f"{path} is one document, because its lines end in carriage returns alone" in caplog.text


def test_a_parquet_column_of_lists_or_of_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for column, says in {
        "text": "row 0: field 'text' holds list, not text",
        "body": "no column 'text'; it has body",
    }.items():
        pq.write_table(pa.table({column: [["a", "b"]] * 9}), path)
        assert says in refusal(path.read_bytes(), path, format="parquet")


@pytest.mark.parametrize(
    ("name", "packing"),
    [(name, packing) for name in FORMATS for packing in PACKINGS if not (packing and name == "parquet")],
)
def test_good_text_of_every_format_passes(name: str, packing: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    path = tmp_path / f"a.{form.ending}{packing}"
    path.write_bytes(PACKINGS[packing](form.pack(form.texts(60))))
    look(path, **form.options)


def test_text_with_some_control_characters_and_of_any_script_passes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "\x1b[1mterminal\x1b[0m\fnew page\0\n" * 30 + "漢字かな交じり文 текст ÄÖÜ\u0085\n" * 50
    )
    look(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "text",
    ["8=FIX.4.4\x0135=D\x0149=A\x0138=5\x0110=1\x01\n", "N\bNA\bAM\bME\bE\n", "a\x1fb\x1ec\x1d\n", "\x93so\x94 \x96\n"],
    ids=["fix", "overstruck", "separators", "windows-1252"],
)
def test_real_text_with_many_control_characters_passes(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text * 300)
    look(tmp_path / "a.txt")


def test_bad_records_that_may_be_skipped_are_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{\n{"text": 1}\n')
    look(path, format="jsonl", max_bad_records=2)
    with pytest.raises(CorpusError, match=r"a.jsonl: line 3: .* \(more than the 1 that max_bad_records allows"):
        look(path, format="jsonl", max_bad_records=1)
    path.write_text("{\n[]\n")
    look(path, format="jsonl", max_bad_records=99)
    assert (
        "none of the first 2 records can be read: " in caplog.text and "a.jsonl: line 1: not valid JSON" in caplog.text
    )


def test_no_more_is_read_than_the_first_records_of_some_files(tmp_path: Path) -> None:
    good = json.dumps({"text": docstrings(9)[0]}) + "\n"
    files = [tmp_path / f"{number:03}.jsonl" for number in range(FILES * 3)]
    for number, path in enumerate(files):
        path.write_text(good * RECORDS + "{\n" if number % 3 == 0 else "{\n")
    look(*files, format="jsonl")


@pytest.mark.parametrize(("name", "form"), [("a.jsonl", "jsonl"), ("a.json.gz", "jsonl"), ("a.tsv", "csv")])
def test_records_that_are_read_as_text_are_told(
    name: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    look(path, format="source")
    assert not caplog.messages, "which may be the source of data"
    look(path)
    assert f"some files have the format {form}, but they are read as text" in caplog.text


@pytest.mark.parametrize("ending", PACKINGS)
def test_a_name_with_two_colons_is_that_of_a_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"std::vector.txt{ending}"
    path.write_bytes(PACKINGS[ending](TEXT.encode()))
    look(path)


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
def test_an_archive_is_no_text(ending: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    (tmp_path / "one.txt").write_text(TEXT * 60)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "one.txt")
    with pytest.raises(CorpusError, match="is a tar archive; unpack it"):
        look(path)
