"""Raw files that change, or rot, after they were looked at: nothing is made of them under the name of what they
were.
"""

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support import flip_bit
from tests.trainer.made import prepare_corpus, prepare_tokenizer
from tests.trainer.preparing import content, job_of, leftovers, run, set_folder, write_raw
from tests.trainer.raw_files import FORMATS, PACKINGS, pieces_of
from trainer.common.errors import ChangedFile, CorpusError, RecordError
from trainer.common.progress import silent
from trainer.config.corpora import CorpusConfig
from trainer.config.jobs import PrepareJob
from trainer.data.pieces import Piece
from trainer.data.readers import read_documents
from trainer.data.sources import find_pieces, look_at_text
from trainer.store.storage import Store

pytestmark = pytest.mark.usefixtures("rotting")


def rot(path: Path, place: int) -> None:
    """Flip a bit of a file, which keeps its size and its time; the clock of its inode has gone on since it was looked
    at.
    """
    before = path.stat()
    flip_bit(path, place)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def texts_of(piece: Piece, corpus: CorpusConfig) -> list[bytes]:
    bad: list[RecordError] = []
    return [document.text for document in read_documents(piece, corpus, bad.append)]


@pytest.mark.parametrize(
    ("name", "packing"),
    [(name, packing) for name in FORMATS for packing in PACKINGS if name != "parquet" or not packing],
)
def test_a_bit_that_flips_after_the_look_is_found_when_the_file_is_read(
    name: str, packing: str, tmp_path: Path
) -> None:
    form = FORMATS[name]
    path = tmp_path / f"a.{form.ending}{packing}"
    path.write_bytes(PACKINGS[packing](form.pack(form.texts(60))))
    corpus, (piece,) = pieces_of(path, **form.options)
    assert texts_of(piece, corpus)
    rot(path, path.stat().st_size // 2)
    with pytest.raises(
        ChangedFile, match=r"has changed since it was read first, or is damaged.*run this again"
    ) as refused:
        texts_of(piece, corpus)
    assert str(refused.value).startswith(str(path))
    assert refused.value.path == str(path)


def test_a_bit_that_flips_in_a_zip_is_found_too(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "some words\n" * 100)
    corpus, (piece,) = pieces_of(path, format="lines")
    assert len(texts_of(piece, corpus)) == 100
    rot(path, 10)  # the time of day in the archive
    with pytest.raises(ChangedFile):
        texts_of(piece, corpus)


@pytest.mark.parametrize("name", ["text", "separated", "lines", "jsonl", "csv", "tsv"])
def test_only_the_piece_that_has_changed_is_refused(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    path = tmp_path / f"a.{form.ending}"
    path.write_bytes(form.pack(form.texts(60)))
    corpus, pieces = pieces_of(path, 1024, **form.options)
    before = [texts_of(piece, corpus) for piece in pieces]
    rot(path, pieces[2].end - 2)
    for piece, texts in zip(pieces, before, strict=True):
        if piece.index == 2:
            with pytest.raises(ChangedFile):
                texts_of(piece, corpus)
        else:
            assert texts_of(piece, corpus) == texts


def test_what_is_appended_after_the_look_is_no_part_of_the_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo")
    corpus, (piece,) = pieces_of(path, format="lines")
    path.write_text("one\ntwo and more\nthree\n")
    assert texts_of(piece, corpus) == [b"one", b"two"]


def test_a_header_of_two_lines_is_part_of_every_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,"no\nte",text\n' + "".join(f"{number},x,word {number}\n" for number in range(400)))
    corpus, pieces = pieces_of(path, 1024, format="csv")
    assert sum(len(texts_of(piece, corpus)) for piece in pieces) == 400
    rot(path, path.read_bytes().index(b"te"))
    for piece in pieces:
        with pytest.raises(ChangedFile):
            texts_of(piece, corpus)


@pytest.fixture
def looked_at(clean: Path, code: Path, tmp_path: Path) -> PrepareJob:
    """A job whose raw files, of its own, were looked at, and whose tokenizer is there."""
    raw = tmp_path / "raw"
    write_raw(raw)
    job = job_of(raw, tmp_path / "store")
    shutil.copytree(clean / "tokenizers", tmp_path / "store" / "tokenizers")
    (corpus,) = job.data.corpora
    find_pieces(Store(job.store), corpus, job.data.shards.piece_bytes)
    return job


@pytest.mark.deep
def test_a_file_that_changed_between_look_and_build_becomes_no_shard_and_the_next_run_is_right(
    looked_at: PrepareJob, tmp_path: Path
) -> None:
    path = tmp_path / "raw" / "heapq.py"
    rot(path, path.read_bytes().index(b"def "))
    tokenizer = prepare_tokenizer(looked_at, silent())
    with pytest.raises(ChangedFile, match=r"heapq.py has changed since it was read first"):
        prepare_corpus(looked_at, "code", tokenizer, silent())
    assert not list(Path(looked_at.store).glob("shards/*/manifest.json"))
    assert leftovers(Path(looked_at.store)) == []
    again = run(looked_at)
    fresh = job_of(tmp_path / "raw", tmp_path / "fresh")
    shutil.copytree(Path(looked_at.store) / "tokenizers", tmp_path / "fresh" / "tokenizers")
    expected = run(fresh)
    assert again.shards[0].key == expected.shards[0].key
    assert content(set_folder(looked_at, again)) == content(set_folder(fresh, expected))


def test_the_other_files_are_not_read_again_for_it(looked_at: PrepareJob, tmp_path: Path) -> None:
    path = tmp_path / "raw" / "heapq.py"
    rot(path, 100)
    tokenizer = prepare_tokenizer(looked_at, silent())
    with pytest.raises(ChangedFile):
        prepare_corpus(looked_at, "code", tokenizer, silent())
    seen: list[int] = []
    (corpus,) = looked_at.data.corpora
    find_pieces(Store(looked_at.store), corpus, looked_at.data.shards.piece_bytes, seen.append)
    assert seen == [path.stat().st_size]


def test_a_tokenizer_is_not_trained_on_a_file_that_has_changed_and_the_next_run_works(
    looked_at: PrepareJob, tmp_path: Path
) -> None:
    shutil.rmtree(Path(looked_at.store) / "tokenizers")
    rot(tmp_path / "raw" / "heapq.py", 100)
    with pytest.raises(ChangedFile, match=r"heapq.py has changed since it was read first"):
        prepare_tokenizer(looked_at, silent())
    assert Store(looked_at.store).names("tokenizers") == []
    assert not prepare_tokenizer(looked_at, silent()).reused


def test_a_file_of_which_the_tokenizer_sees_the_beginning_only_is_compared_as_a_whole(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_raw(raw)
    job = job_of(
        raw, tmp_path / "store", tokenizer={"vocab_size": 300, "sample_bytes": 1000}, shards={"piece_bytes": 2**20}
    )
    (corpus,) = job.data.corpora
    find_pieces(Store(job.store), corpus, job.data.shards.piece_bytes)
    for path in raw.iterdir():
        rot(path, path.stat().st_size - 10)
    with pytest.raises(ChangedFile):
        prepare_tokenizer(job, silent())


def test_a_zip_holds_one_file_or_is_refused(tmp_path: Path) -> None:
    corpus = CorpusConfig(name="zipped", paths=[str(tmp_path / "*.zip")], format="lines")

    def zipped(**files: str) -> list[bytes]:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        store = Store(str(tmp_path / "store"))
        return [text for piece in find_pieces(store, corpus, 2**20) for text in texts_of(piece, corpus)]

    notes = {"data/": "", "data/one.txt": "first\nsecond\n", "__MACOSX/data/._one.txt": "note"}
    assert zipped(**notes) == [b"first", b"second"]
    with pytest.raises(CorpusError, match=r"a\.zip holds 2 files \(one\.txt, two\.txt\); expected one in a \.zip"):
        zipped(**{"one.txt": "first\n", "two.txt": "second\n"})
    with pytest.raises(CorpusError, match=r"a\.zip holds no file"):
        zipped(**{"data/": ""})
    zipped(**{"one.txt": "first\n"})
    archive = (tmp_path / "a.zip").read_bytes()
    for flags, method, problem in [(1, 0, "'one.txt' is encrypted"), (0, 97, "compression method is not supported")]:
        marked = bytearray(archive)
        for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            marked[archive.index(header) + at], marked[archive.index(header) + at + 2] = flags, method
        (tmp_path / "a.zip").write_bytes(marked)
        with pytest.raises(CorpusError, match=rf"a\.zip cannot be read: .*{problem}.*; unpack it"):
            look_at_text(corpus, [str(tmp_path / "a.zip")])
    (tmp_path / "a.zip").write_bytes(b"PK no archive")
    with pytest.raises(CorpusError, match=r"a\.zip cannot be read"):
        [texts_of(piece, corpus) for piece in find_pieces(Store(str(tmp_path / "s")), corpus, 2**20)]
