"""Shards decode back to their documents, whatever the text and the tokenizer."""

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.trainer.curating import write_documents
from tests.trainer.raw_files import docstrings, sources
from tests.trainer.shard_files import Ids, Side, build, read_side
from tests.trainer.small_tokenizers import bpe_that_ends_texts_itself, byte_level_bpe, info_of, random_texts, words
from trainer.common.errors import RecordError
from trainer.data import readers, shards
from trainer.data.encoders import ENGINES
from trainer.data.shards import is_held_out, read_record, token_dtype, write_record
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.store.storage import Store

SPELT = f"before {END_OF_TEXT} after{END_OF_TEXT}"
TEXTS = [*docstrings(60), SPELT, *docstrings(9), *(text for text in random_texts(300, seed=2) if text)]


def decoded(side: Side, tokenizer: Tokenizer, eos: int) -> list[str]:
    """The text of each entry, after a check that the end token stands at its end and nowhere else."""
    for ids in side.entries:
        assert ids.index(eos) == len(ids) - 1
    return [tokenizer.decode(ids[:-1], skip_special_tokens=False) for ids in side.entries]


def stretches(ids: Ids, eos: int) -> list[Ids]:
    """The ids before each end token."""
    ends = [place for place, each in enumerate(ids) if each == eos]
    return [ids[start:end] for start, end in zip([0, *(end + 1 for end in ends)], ends, strict=False)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "tokenizer", [byte_level_bpe(), bpe_that_ends_texts_itself()], ids=["plain", "ends-texts-itself"]
)
def test_a_shard_decodes_back_to_each_document_once_on_the_side_that_its_text_decides(
    tokenizer: Tokenizer, engine: str, tmp_path: Path
) -> None:
    info = info_of(tokenizer)
    raw = write_documents(tmp_path / "a.jsonl", TEXTS)
    record = build(tmp_path / "out", raw, info, engine, held_out=0.3, format="jsonl")
    train, held_out = (read_side(tmp_path / "out", side, 3, "<u2") for side in ("shard", "validation"))
    texts = {"train": decoded(train, tokenizer, info.eos_id), "held out": decoded(held_out, tokenizer, info.eos_id)}
    assert sorted(texts["train"] + texts["held out"]) == sorted(TEXTS)
    assert texts["train"] == [text for text in TEXTS if not is_held_out(text.encode(), 0.3)]
    assert texts["held out"] == [text for text in TEXTS if is_held_out(text.encode(), 0.3)]
    assert (record.documents, record.validation_documents) == (len(train.entries), len(held_out.entries))
    assert (record.tokens, record.validation_tokens) == (len(train.ids), len(held_out.ids))
    assert record.bad_records == 0
    assert record.raw_bytes == raw.stat().st_size


@pytest.mark.parametrize(
    ("count", "added", "dtype"), [(2**16 - 1, 1, "<u2"), (2**16, 1, "<u4"), (2**16 - 2, 3, "<u4"), (300, 1, "<u2")]
)
def test_ids_take_two_bytes_where_the_largest_added_tokens_included_fits(
    count: int, added: int, dtype: str, tmp_path: Path
) -> None:
    info = info_of(words(count, added))
    assert token_dtype(info.max_id) == np.dtype(dtype)
    raw = write_documents(tmp_path / "a.jsonl", [f"w0 w{count - 2}", "w1"])
    build(tmp_path, raw, info, format="jsonl")
    assert read_side(tmp_path, "shard", 3, dtype).entries == [[0, count - 2, info.eos_id], [1, info.eos_id]]
    assert info.eos_id == info.max_id


def test_a_large_document_without_line_ends_has_the_ids_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "BATCH_BYTES", 64)
    info = info_of(byte_level_bpe())
    text = " ".join(docstrings(20)).replace("\n", " ")
    build(tmp_path, write_documents(tmp_path / "a.jsonl", [text]), info, format="jsonl")
    assert read_side(tmp_path, "shard", 3, "<u2").ids == [*ENGINES["tokenizers"](info)([text.encode()])[0], info.eos_id]


def test_about_the_wanted_share_is_held_out() -> None:
    texts = [str(number).encode() for number in range(20_000)]
    for fraction in (0.01, 0.3):
        found = sum(is_held_out(text, fraction) for text in texts)
        assert abs(found - 20_000 * fraction) < 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
    assert not any(is_held_out(text, 0.0) for text in texts)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_large_document_has_the_ids_of_the_whole(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "BATCH_BYTES", 512)
    info = info_of(byte_level_bpe())
    text = "\n".join([*sources().values(), *docstrings(60), *random_texts(200, seed=3)])
    data = text.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    (tmp_path / name).write_bytes(data)
    build(tmp_path, tmp_path / name, info, engine, piece_bytes=1024)
    whole = ENGINES["tokenizers"](info)([text.encode()])[0].tolist()
    assert read_side(tmp_path, "shard", 3, "<u2").ids == [*whole, info.eos_id]


@pytest.mark.parametrize(("groups", "held_out"), [(1, 0.0), (3, 0.0), (1, 0.4), (3, 0.4)])
def test_a_text_ends_where_another_follows_though_it_goes_on_in_another_shard(
    groups: int, held_out: float, tmp_path: Path
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    texts = {name: "".join(f"{name} line {n} ends\n" for n in range(400)) for name in ("first", "second", "third")}
    for name, text in texts.items():
        (raw / name).write_text(text)
    tokenizer = byte_level_bpe()
    info = info_of(tokenizer)
    found: list[str] = []
    for group in range(groups):
        folder = tmp_path / f"{group}"
        build(folder, f"{raw}/*", info, held_out=held_out, piece_bytes=1024, group=group, groups=groups)
        for side in ("shard", "validation"):
            ids = read_side(folder, side, 3, token_dtype(info.max_id)).ids
            assert not ids or ids[-1] == info.eos_id
            parts = [tokenizer.decode(part) for part in stretches(ids, info.eos_id)]
            assert not any(a + b in text for a, b in pairwise(parts) for text in texts.values()), "ended within"
            found += parts
    assert sum(map(len, found)) == sum(map(len, texts.values()))
    assert all(any(part in text for text in texts.values()) for part in found), "no text goes over into another"
    assert (len(found) == len(texts)) == (groups == 1 and held_out == 0)


def test_a_text_ends_where_its_next_part_is_passed_over(tmp_path: Path) -> None:
    tokenizer = byte_level_bpe()
    info = info_of(tokenizer)
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a").write_bytes(b"first line\n" * 100 + b"second \xff line\n" * 20)
    (raw / "b").write_text("another text\n")
    record = build(tmp_path / "out", f"{raw}/*", info, piece_bytes=1090, max_bad_records=1)
    ids = read_side(tmp_path / "out", "shard", 3, token_dtype(info.max_id)).ids
    assert record.bad_records == 1
    assert [tokenizer.decode(each)[:12] for each in stretches(ids, info.eos_id)] == ["first line\nf", "another text"]


@pytest.mark.parametrize("piece_bytes", [2**30, 5 * 2**12, 2**12])
def test_a_text_ends_where_a_part_of_it_is_left_out(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a file that is read in parts: within a piece, and where a piece begins or ends."""
    raw, line, size = tmp_path / "a.txt", b"%s line\n", 2**12
    monkeypatch.setattr(readers, "PART_BYTES", size)
    first, gone, last = (line % word * (size // len(line % word)) for word in (b"first", b"gone", b"last"))
    raw.write_bytes(first + b"gone \xff\n" + gone + last)
    tokenizer = byte_level_bpe()
    info = info_of(tokenizer)
    record = build(tmp_path / "out", raw, info, piece_bytes=piece_bytes, max_bad_records=2)
    ids = read_side(tmp_path / "out", "shard", 3, token_dtype(info.max_id)).ids
    assert record.bad_records
    found = [tokenizer.decode(each) for each in stretches(ids, info.eos_id)]
    assert len(found) == 2 and found[0].startswith("first") and found[1].endswith("last line\n")
    assert "last" not in found[0] and "first" not in found[1]


def test_bad_records_are_counted_up_to_the_budget_and_refused_beyond(tmp_path: Path) -> None:
    raw = tmp_path / "a.jsonl"
    raw.write_text('{"text": "one"}\n{\n{"text": 2}\n{"text": "three"}\n')
    info = info_of(byte_level_bpe())
    record = build(tmp_path, raw, info, format="jsonl", max_bad_records=2)
    assert (record.documents, record.bad_records) == (2, 2)
    with pytest.raises(RecordError, match="line 3"):
        build(tmp_path, raw, info, format="jsonl", max_bad_records=1)


def test_a_shard_without_documents_is_empty(tmp_path: Path) -> None:
    record = build(tmp_path, write_documents(tmp_path / "a.jsonl", [""]), info_of(byte_level_bpe()), format="jsonl")
    assert (record.documents, record.tokens) == (0, 0)
    assert read_side(tmp_path, "shard", 3, "<u2") == Side([], [])


def test_a_shards_record_is_read_back_and_any_changed_byte_of_it_is_seen(empty_store: Store, tmp_path: Path) -> None:
    record = build(tmp_path, write_documents(tmp_path / "a.jsonl", TEXTS), info_of(byte_level_bpe()), format="jsonl")
    write_record(empty_store, "set", record)
    path = empty_store.fetch("set/shard-00003.json")
    assert read_record(empty_store, "set/shard-00003.json") == record
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert read_record(empty_store, "set/shard-00003.json") is None, position
    path.write_bytes(data[:-20])
    assert read_record(empty_store, "set/shard-00003.json") is None
    assert read_record(empty_store, "set/shard-00004.json") is None
