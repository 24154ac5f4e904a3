"""Quote characters in csv and TSV files: what begins with one swallows no record without a word."""

import logging
from pathlib import Path

import pytest

from tests.trainer.labelled_data import as_csv, read, written
from tests.trainer.raw_files import read_all
from trainer.common.errors import RecordError
from trainer.config.corpora import CorpusConfig
from trainer.data.quotes import RARE
from trainer.data.raw_files import csv_hint, format_by_name
from trainer.data.sources import reading_options

SHORT = {"text_columns": ["a"], "id_column": None}


def quoting_rows(count: int = 80) -> list[dict[str, object]]:
    """Short texts, of which one begins with a quote that a later one's end would close."""
    rows: list[dict[str, object]] = [{"label": n % 2, "a": f"text {n}"} for n in range(count)]
    rows[10]["a"], rows[14]["a"] = '"What is that', 'that is it"'
    return rows


@pytest.mark.parametrize("kind", ["labelled", "corpus"])
def test_a_record_that_goes_on_over_lines_among_short_ones_is_told_by_its_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["label,a", *(f"{row['label']},{row['a']}" for row in quoting_rows())]
    path = written(tmp_path / "a.csv", "\n".join(lines) + "\n")
    caplog.set_level(logging.WARNING)
    if kind == "corpus":
        assert len(read_all(path, format="csv", text_field="a")) == 76
    else:
        assert len(read(source="csv", train=[path], validation=[path], **SHORT).texts["train"]) == 76
    assert (
        f"{path}: line 12: a record in quotes spans several lines, while the other 75 are short" in caplog.messages[0]
    )
    assert "set quoting to false" in caplog.messages[0]


def test_line_ends_where_many_texts_have_them_or_all_are_long_are_not_remarked_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    several = [{"label": n % 2, "a": "one\ntwo" if n < 100 * RARE + 1 else "one"} for n in range(100)]
    long = [{"label": n % 2, "a": "one\ntwo" if n == 3 else "a long text " * 50} for n in range(100)]
    for name, rows in (("several", several), ("long", long)):
        path = written(tmp_path / f"{name}.csv", as_csv(rows))
        assert read_all(path, format="csv", text_field="a") == [row["a"] for row in rows]
    assert caplog.messages == []


def test_a_tsv_file_that_is_quoted_after_all_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rows = [{"label": n % 2, "a": f'he said "{n}" then' if n in (3, 5) else f"text {n}"} for n in range(20)]
    path = written(tmp_path / "a.tsv", as_csv(rows, "\t"))
    read_all(path, format="csv", text_field="a")
    assert f"{path}: line 5: a text is in quotes, with inner quotes doubled, and 1 more" in caplog.messages[0]
    assert "if quote characters delimit texts here, set quoting to true" in caplog.messages[0]
    caplog.clear()
    assert read_all(path, format="csv", text_field="a", quoting=True) == [row["a"] for row in rows]
    read_all(path, format="csv", text_field="a", quoting=False)
    assert caplog.messages == []


@pytest.mark.parametrize("piece_bytes", [1024, 64 * 2**20])
def test_a_quote_that_never_ends_is_an_error_of_a_corpus_too(piece_bytes: int, tmp_path: Path) -> None:
    lines = ["text,n", *(f"text {n},{n}" for n in range(200))]
    lines[150] = '"no end' + lines[150]
    path = written(tmp_path / "a.csv", "\n".join(lines) + "\n")
    with pytest.raises(
        RecordError, match=r"a\.csv: line 151: not valid CSV: unexpected end of data; .*set quoting to false"
    ):
        read_all(path, piece_bytes, format="csv", max_bad_records=5)


def test_quoting_names_what_is_made_of_csv_files_alone() -> None:
    corpus = CorpusConfig(name="a", paths=["a.txt"], format="lines")
    assert reading_options(corpus) == {"format": "lines", "text_field": "text", "separator": None, "delimiter": None}
    assert {"quoting", "csv"} <= reading_options(corpus.model_copy(update={"format": "csv"})).keys()


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("https://h/e.csv?download=true", "csv"),
        ("https://h/get?name=e.csv", None),
        ("/data/v1.csv.dir/a.jsonl", "jsonl"),
        ("/data/v1.csv/a", None),
        ("s3://b/part-?.tsv", "csv"),
        ("rows.JSONL.zst", "jsonl"),
        ("rows.csv.jsonl", "jsonl"),
        ("*.parquet", "parquet"),
    ],
)
def test_the_format_is_told_by_the_name_alone(path: str, form: str | None) -> None:
    assert format_by_name(path) == form
    assert bool(csv_hint(path)) == (form == "csv")
