"""One contract for every reader: the documents are those of an independent reading, however the file is packed or
cut.
"""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.raw_files import FORMATS, PACKINGS, docstrings, pieces_of, read_all, sources
from trainer.common.errors import CorpusError, RecordError
from trainer.config.corpora import CorpusConfig
from trainer.data.readers import read_documents, refuse
from trainer.data.sources import find_pieces
from trainer.store.storage import Store

NAMED = ("one", "two", "three")

BOM = b"\xef\xbb\xbf"
PACKED = [(name, ending) for name in FORMATS for ending in PACKINGS if name != "parquet" or not ending]


@pytest.mark.parametrize(("name", "ending"), PACKED)
def test_documents_are_those_of_an_independent_reading(name: str, ending: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    data = form.pack(form.texts(40))
    path = tmp_path / f"raw.{form.ending}{ending}"
    path.write_bytes(PACKINGS[ending](data))
    assert read_all(path, **form.options) == form.unpack(data)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_cut_into_pieces_holds_the_documents_of_the_whole(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    data = form.pack(form.texts(100))
    path = tmp_path / f"raw.{form.ending}"
    path.write_bytes(data)
    _, pieces = pieces_of(path, 1024, **form.options)
    assert len(pieces) > 3
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert read_all(path, 1024, **form.options) == form.unpack(data)


@pytest.mark.parametrize("name", FORMATS)
def test_a_last_record_larger_than_a_piece_ends_the_last_piece(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    data = form.pack([*form.texts(30), "word " * 1000])
    path = tmp_path / f"raw.{form.ending}"
    path.write_bytes(data)
    _, pieces = pieces_of(path, 1024, **form.options)
    assert len(pieces) > 2
    assert min(piece.size for piece in pieces) > 0
    assert read_all(path, 1024, **form.options) == form.unpack(data)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "parquet"])
def test_windows_line_ends_cut_like_others(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    data = form.pack(form.texts(100)).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    path = tmp_path / f"raw.{form.ending}"
    path.write_bytes(data)
    assert len(pieces_of(path, 1024, **form.options)[1]) > 3
    assert read_all(path, 1024, **form.options) == read_all(path, **form.options)


@pytest.mark.parametrize("name", ["text", "separated", "source", "lines", "jsonl", "csv", "tsv"])
def test_a_byte_order_mark_is_no_text(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    data = form.pack(form.texts(60))
    plain, marked = tmp_path / f"plain.{form.ending}", tmp_path / f"marked.{form.ending}"
    plain.write_bytes(data)
    marked.write_bytes(BOM + data)
    assert read_all(marked, **form.options) == read_all(plain, **form.options)
    assert read_all(marked, 1024, **form.options) == read_all(plain, **form.options)


def test_a_byte_order_mark_before_a_quoted_column_name_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(BOM + b'"text","n"\n"one, two",1\n')
    assert read_all(tmp_path / "a.csv", format="csv") == ["one, two"]


def test_windows_line_ends_stay_in_text_and_become_newlines_in_source(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\n")
    assert read_all(tmp_path / "a.txt") == ["one\r\ntwo\rthree\n"]
    assert read_all(tmp_path / "a.txt", format="source") == ["one\ntwo\nthree\n"]
    assert read_all(tmp_path / "a.txt", format="lines") == ["one", "two\rthree"]


def test_windows_line_ends_around_separators_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\nmore\r\n%%\r\ntwo\r\n")
    assert read_all(tmp_path / "a.txt", separator="%%") == ["one\r\nmore", "two"]


def test_separators_that_enclose_nothing_give_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("%%\none\n%%\n%%\ntwo\n%% not one\n%%\n")
    assert read_all(tmp_path / "a.txt", separator="%%") == ["one", "two\n%% not one"]


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\none\n\n\ntwo")
    (tmp_path / "a.jsonl").write_text('\n{"text": "one"}\n  \n\n{"text": "two"}')
    (tmp_path / "a.csv").write_text("text,n\n\none,1\n\n\ntwo,2")
    for name in ("lines", "jsonl", "csv"):
        path = tmp_path / f"a.{FORMATS[name].ending}"
        assert read_all(path, **FORMATS[name].options) == ["one", "two"], name


def test_empty_texts_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "one"}\n')
    assert read_all(tmp_path / "a.jsonl", format="jsonl") == ["one"]


def test_one_text_a_file_keeps_the_files_order_and_leaves_empty_files_out(tmp_path: Path) -> None:
    for name, text in sources().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "empty.py").touch()
    assert read_all(tmp_path / "*.py", format="source") == [text for _, text in sorted(sources().items())]
    assert read_all(tmp_path / "*.py", 1024, format="source") == [text for _, text in sorted(sources().items())]


def test_the_delimiter_and_the_column_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('body;n\n"one; two";1\n')
    assert read_all(tmp_path / "a.csv", format="csv", delimiter=";", text_field="body") == ["one; two"]


def test_a_zstandard_file_of_several_frames_is_read_to_its_end(tmp_path: Path) -> None:
    pack = PACKINGS[".zst"]
    (tmp_path / "a.txt.zst").write_bytes(pack(b"one\ntw") + pack(b"o\nthree\n"))
    assert read_all(tmp_path / "a.txt.zst", format="lines") == ["one", "two", "three"]


@pytest.mark.parametrize(("ending", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_a_file_of_several_streams_is_read_to_its_end_or_refused(
    ending: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    texts = [f"{number} {text}" for number, text in enumerate(docstrings(10))]
    streams = [pack(f"{json.dumps({'text': text})}\n".encode()) for text in texts]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(b"".join(streams))
    assert read_all(path, format="jsonl") == texts
    path.write_bytes(streams[0] + bytes(8) + streams[1])
    assert read_all(path, format="jsonl") == texts[:2]
    cut, rubbish, flipped = b"".join(streams)[:-5], b"".join(streams) + b"rubbish", bytearray(b"".join(streams))
    flipped[sum(map(len, streams[:3])) + 1] ^= 1  # in the head of the fourth
    for damaged in (cut, rubbish, bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"a\.jsonl.* cannot be read"):
            read_all(path, format="jsonl")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_text_of_several_parts_is_whole_when_they_are_put_together(ending: str, tmp_path: Path) -> None:
    text = "\n".join(docstrings(100))
    text *= 5 * 2**20 // len(text) + 1
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKINGS[ending](text.encode()))
    assert read_all(path, 64 * 2**20) == [text]


def test_texts_without_latin_letters_are_cut_after_letters_too(tmp_path: Path) -> None:
    text = "Привет, мир\n第一章\n今天天气很好。\n" * 100
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    _, pieces = pieces_of(tmp_path / "a.txt", 1024)
    assert len(pieces) > 3
    assert read_all(tmp_path / "a.txt", 1024) == [text]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_is_named_twice_is_read_only_where_another_is_wanted(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"raw.{kind}"
    if kind == "csv":
        path.write_text("text,text,other\none,two,three\n")
    else:
        pq.write_table(pa.Table.from_arrays([pa.array([each]) for each in NAMED], ["text", "text", "other"]), path)
    with pytest.raises(RecordError, match=rf"raw\.{kind} has 2 columns named 'text'; give them different names"):
        read_all(path, format=kind, text_field="text")
    assert read_all(path, format=kind, text_field="other") == ["three"]


def test_few_large_rows_are_held_beside_their_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.tables.PART_BYTES", 2**20)
    draw = random.Random(1)
    rows = [draw.randbytes(10**5).hex() for _ in range(60)]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", use_dictionary=False)
    corpus = CorpusConfig(name="one", paths=[str(tmp_path / "a.parquet")], format="parquet")
    pieces = find_pieces(Store(str(tmp_path / "store")), corpus, 2**28)
    before, most, texts = pa.total_allocated_bytes(), 0, []
    for piece in pieces:
        for document in read_documents(piece, corpus, refuse):
            texts.append(document.text.decode())
            most = max(most, pa.total_allocated_bytes() - before)
    assert texts == rows
    assert most < 1.3 * sum(map(len, rows))
