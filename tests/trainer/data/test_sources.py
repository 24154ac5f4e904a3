"""Finding raw files, cutting them into pieces, and noticing what changed since the last look."""

import errno
import glob
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests.depth import once
from tests.faults import faulty
from tests.s3 import S3Server, fresh_clients
from tests.support import LONG_AGO
from tests.trainer.raw_files import FORMATS, pieces_of
from trainer.common.errors import CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.data.matching_files import find_remote
from trainer.data.raw_files import SourceFile
from trainer.data.sources import find_pieces, find_sources
from trainer.store.storage import Store


def corpus_of(*paths: Path | str) -> CorpusConfig:
    return CorpusConfig(name="corpus", paths=[str(path) for path in paths])


def write(path: Path, text: str, seconds: int = LONG_AGO) -> None:
    """Write a file that looks as if it was last changed at a certain time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (seconds, seconds))


def digests(store: Store, corpus: CorpusConfig) -> list[str]:
    return [piece.sha256 for piece in find_pieces(store, corpus, 1024)]


def test_files_are_sorted_by_their_path_below_the_globs_fixed_part(tmp_path: Path) -> None:
    for name in ("b/z.txt", "a/y.txt", "a/b/x.txt", "a/no.md"):
        write(tmp_path / name, "text")
    sources = find_sources(corpus_of(tmp_path / "**" / "*.txt"))
    assert [source.key for source in sources] == ["a/b/x.txt", "a/y.txt", "b/z.txt"]
    assert [source.path for source in sources] == [str(tmp_path / source.key) for source in sources]


def test_a_file_that_several_paths_match_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "text")
    assert len(find_sources(corpus_of(tmp_path / "*.txt", tmp_path / "a.txt", tmp_path / "a.*"))) == 1


def test_folders_and_links_to_folders_are_not_taken_for_files(tmp_path: Path) -> None:
    write(tmp_path / "folder" / "a.txt", "text")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    write(tmp_path / "lone.txt", "text")
    assert [source.key for source in find_sources(corpus_of(tmp_path / "*"))] == ["lone.txt"]


def keys(path: Path) -> list[str]:
    return [source.key for source in find_sources(corpus_of(path))]


def test_links_are_followed_and_what_they_lead_to_twice_counts_once(tmp_path: Path) -> None:
    top, other = tmp_path / "top", tmp_path / "other"
    write(top / "one" / "a.txt", "text")
    write(other / "b.txt", "text")
    (top / "two").symlink_to(other)
    for pattern in ("*/*.txt", "**/*.txt", "t*/*.txt", "**"):
        expected = sorted(glob.glob(f"{top}/{pattern}", recursive=True))
        files = [path for path in expected if Path(path).is_file()]
        assert [source.path for source in find_sources(corpus_of(top / pattern))] == files, pattern
    (top / "again").symlink_to(top / "one")
    (top / "one" / "back").symlink_to(top)
    (top / "one" / "c.txt").symlink_to(top / "one" / "a.txt")
    assert keys(top / "**/*.txt") == ["one/a.txt", "two/b.txt"]
    assert keys(top / "again/*.txt") == ["a.txt"]


def test_a_file_counts_once_however_its_path_is_spelt(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt", "text")
    place = tmp_path / "in"
    spelt = [f"{place}/./a.txt", f"{place}//a.txt", f"{place}/../in/a.txt", f"file://{place}/a.txt", f"{place}/*.txt"]
    values = {"name": "c", "paths": spelt, "format": "text"}
    assert [source.path for source in find_sources(CorpusConfig.model_validate(values))] == [str(place / "a.txt")]


def test_hidden_files_are_taken_by_patterns_that_say_so(tmp_path: Path) -> None:
    for name in ("a.txt", ".b.txt", ".checkpoints/a.txt"):
        write(tmp_path / name, "text")
    for pattern in ("*.txt", "**/*.txt", ".*.txt", ".*/*.txt", ".checkpoints/*.txt"):
        expected = [path.removeprefix(f"{tmp_path}/") for path in glob.glob(f"{tmp_path}/{pattern}", recursive=True)]
        found = [str(Path(source.path).relative_to(tmp_path)) for source in find_sources(corpus_of(tmp_path / pattern))]
        assert found == sorted(expected), pattern


def test_a_file_within_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"it is a file within an archive; unpack it, and use its files"):
        find_sources(corpus_of(f"zip://a.txt::{tmp_path / 'z.zip'}"))


def test_a_name_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.txt").write_text("as old archives have them")
    with pytest.raises(CorpusError, match=r"caf\\xe9.txt cannot be read: its name is not UTF-8; rename it"):
        find_sources(corpus_of(tmp_path / "*.txt"))


@pytest.mark.parametrize("path", ["loop", "loop/a.txt", "loop/*.txt"])
def test_a_path_that_cannot_be_looked_up_is_told(path: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")  # whoever runs this test may enter all folders
    with pytest.raises(CorpusError, match=r"cannot be read: Too many levels of symbolic links"):
        find_sources(corpus_of(tmp_path / path))


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one" / "a.txt", "text")
    write(tmp_path / "two" / "b.txt", "text")
    listed = os.scandir

    def refuse(path: str) -> Any:  # as of another user's: whoever runs this test may read all
        if path.endswith("two"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr("os.scandir", refuse)
    for pattern in ("*/*.txt", "**/*.txt"):
        with pytest.raises(CorpusError, match=r"/two cannot be read: Permission denied"):
            find_sources(corpus_of(tmp_path / pattern))


def test_pieces_depend_on_bytes_and_names_not_on_the_place_or_the_time(tmp_path: Path) -> None:
    form = FORMATS["csv"]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.csv").write_bytes(form.pack(form.texts(60)))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.utime(tmp_path / "two" / "a.csv", (LONG_AGO, LONG_AGO))
    found = [
        [
            (p.key, p.index, p.start, p.end, p.size, p.last, p.sha256)
            for p in pieces_of(folder / "*.csv", 1024, format="csv")[1]
        ]
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert found[0] == found[1]
    assert len(found[0]) > 3


def test_appending_to_a_file_changes_its_last_piece_only(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some words\n" * 1000)
    before = pieces_of(path, 1024, format="lines")[1]
    path.write_text("some words\n" * 1000 + "more\n")
    after = pieces_of(path, 1024, format="lines")[1]
    assert before[:-1] == after[: len(before) - 1]
    assert before[-1] != after[len(before) - 1]


def test_a_compressed_file_is_one_piece(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(os.urandom(5000))
    assert len(pieces_of(tmp_path / "a.txt.gz", 1024)[1]) == 1


def test_parquet_pieces_are_row_groups_measured_in_bytes(tmp_path: Path) -> None:
    form = FORMATS["parquet"]
    path = tmp_path / "a.parquet"
    path.write_bytes(form.pack(form.texts(100)))
    _, pieces = pieces_of(path, 2048, format="parquet")
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == 10
    text_bytes = sum(len(text.encode()) for text in form.texts(100))
    assert text_bytes / 2 < sum(piece.size for piece in pieces) < text_bytes * 2


def test_unchanged_files_are_not_read_again(empty_store: Store, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "text")
    write(tmp_path / "b.txt", "more text")
    seen: list[int] = []
    first = find_pieces(empty_store, corpus_of(tmp_path / "*.txt"), 1024, seen.append)
    second = find_pieces(empty_store, corpus_of(tmp_path / "*.txt"), 1024, seen.append)
    assert first == second
    assert sorted(seen) == [4, 9]


def test_a_job_on_some_of_the_files_does_not_have_the_others_read_again(empty_store: Store, tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.txt", "text")
    every, seen = corpus_of(tmp_path / "*.txt"), list[int]()
    find_pieces(empty_store, every, 1024)
    (tmp_path / "b.txt").unlink()
    find_pieces(empty_store, corpus_of(tmp_path / "c.txt"), 1024)
    find_pieces(empty_store, every, 1024, seen.append)
    find_pieces(empty_store, every.model_copy(update={"max_bad_records": 3}), 1024, seen.append)
    assert seen == []
    write(tmp_path / "a.txt", "another text")
    find_pieces(empty_store, every, 1024)
    (memory,) = empty_store.names("cache")
    kept = json.loads(empty_store.read_bytes(f"cache/{memory}"))["files"]
    assert sorted(kept) == [str(tmp_path / "a.txt"), str(tmp_path / "c.txt")], "that of a removed file is forgotten"


def test_a_file_changed_twice_within_its_clocks_tick_is_read_again(empty_store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    time = (tmp_path / "a.txt").stat().st_mtime_ns
    before = digests(empty_store, corpus_of(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_text("tex!")
    os.utime(tmp_path / "a.txt", ns=(time, time))
    assert digests(empty_store, corpus_of(tmp_path / "a.txt")) != before


def test_a_change_is_seen_though_the_files_time_was_set_back(empty_store: Store, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "text")
    before = digests(empty_store, corpus_of(tmp_path / "a.txt"))
    write(tmp_path / "a.txt", "tex!")
    assert digests(empty_store, corpus_of(tmp_path / "a.txt")) != before


def test_a_change_behind_a_link_is_seen(empty_store: Store, tmp_path: Path) -> None:
    write(tmp_path / "target", "text")
    (tmp_path / "a.txt").symlink_to(tmp_path / "target")
    os.utime(tmp_path / "a.txt", (LONG_AGO, LONG_AGO), follow_symlinks=False)
    before = digests(empty_store, corpus_of(tmp_path / "*.txt"))
    write(tmp_path / "target", "tex!", LONG_AGO + 1)
    assert digests(empty_store, corpus_of(tmp_path / "*.txt")) != before


def test_a_change_is_seen_where_the_file_system_tells_no_version(empty_store: Store) -> None:
    url = f"memory://{uuid.uuid4().hex}/a.txt"
    with fsspec.open(url, "w") as file:
        file.write("text")
    before = digests(empty_store, corpus_of(url))
    with fsspec.open(url, "w") as file:
        file.write("tex!")
    assert digests(empty_store, corpus_of(url)) != before


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]"])
def test_a_damaged_memory_of_the_last_look_costs_a_new_look_only(
    damage: bytes, empty_store: Store, tmp_path: Path
) -> None:
    write(tmp_path / "a.txt", "text")
    corpus = corpus_of(tmp_path / "a.txt")
    first = find_pieces(empty_store, corpus, 1024)
    (memory,) = empty_store.names("cache")
    empty_store.write_bytes(f"cache/{memory}", damage)
    assert find_pieces(empty_store, corpus, 1024) == first


def test_remote_raw_files_keep_their_address() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    with fsspec.open(f"{url}/in/a.txt", "w") as file:
        file.write("text")
    (source,) = find_sources(corpus_of(f"{url}/**/*.txt"))
    assert isinstance(source, SourceFile)
    with fsspec.open(source.path) as file:
        assert file.read() == b"text"
    assert source.key == "in/a.txt"


def test_raw_files_that_others_put_into_a_bucket_are_found_at_the_next_look(s3: S3Server) -> None:
    store = Store(s3.new_store())
    corpus = corpus_of(f"{store.url}/*.txt")
    for number in range(3):
        store.write_bytes(f"{number}.txt", b"1\n")
        store.write_bytes("0.txt", b"2\n" * (number + 1))
        sizes = [source.size for source in find_sources(corpus)]
        assert len(sizes) == number + 1 and sizes[0] == 2 * len(sizes)


def test_an_object_whose_name_would_mean_an_archive_is_refused(s3: S3Server) -> None:
    store = Store(s3.new_store())
    store.write_bytes("std::vector.txt", b"text")
    with pytest.raises(CorpusError, match=r"/std::vector\.txt cannot be read: its name has ::.*rename it"):
        find_sources(corpus_of(f"{store.url}/*.txt"))


def test_the_marker_of_an_empty_folder_is_no_raw_file(s3: S3Server) -> None:
    store = Store(s3.new_store())
    store.write_bytes("raw/x/a.txt", b"text")
    fs, bucket, prefix = fsspec.filesystem("s3"), *store.url.removeprefix("s3://").split("/", 1)
    for name in ("raw/", "raw/x/", "raw/y/"):
        fs.call_s3("put_object", Bucket=bucket, Key=f"{prefix}/{name}")
    (source,) = find_sources(corpus_of(f"{store.url}/raw/**"))
    assert source.key == "x/a.txt"


PATTERNS = [
    "**", "*", "*/*.txt", "?/*.txt", "**/*.txt", "a/**", "a/*", "*/b/*", "*/b/**", "[ab]/x*.txt", "a/x*", "a/x.txt",
    "x*", "*/", "a/b", "none/*", "*x/*",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_patterns_match_remote_files_as_those_of_fsspec_do(kind: str, s3: S3Server) -> None:
    store = Store(s3.new_store() if kind == "s3" else f"memory://{uuid.uuid4().hex}")
    for name in (
        "x.txt",
        "a/x.txt",
        "a/x2.txt",
        "a/.x.txt",
        "a/b/x.txt",
        "a/b/c/x.md",
        "b/x.txt",
        "b/b/y.txt",
        "ax/x.txt",
    ):
        store.write_bytes(name, name.encode())
    for pattern in PATTERNS:
        fs, full = fsspec.url_to_fs(f"{store.url}/{pattern}")
        expected = {path for path, entry in fs.glob(full, detail=True).items() if entry["type"] == "file"}
        found = {path: entry["size"] for path, entry in find_remote(fs, full).items() if entry["type"] == "file"}
        assert found.keys() == expected, pattern
        assert all(size == fs.size(path) for path, size in found.items()), pattern


@pytest.mark.parametrize("pattern", once("*/*.txt", "?/x*", "b*/*"))
def test_a_folder_of_a_bucket_that_cannot_be_listed_is_not_skipped(
    pattern: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(s3.new_store())
    for name in "abc":
        store.write_bytes(f"{name}/x.txt", b"text")
    with faulty(s3.address, share=0, latency=0) as (address, faults), fresh_clients():
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        corpus = corpus_of(f"{store.url}/{pattern}")
        assert len(find_sources(corpus)) == (1 if pattern == "b*/*" else 3)
        faults.always, faults.only = "denied", b"%2Fb%2F"
        with pytest.raises(CorpusError, match=r"cannot be read: Access Denied; check the credentials .* list and read"):
            find_sources(corpus)


def test_a_bucket_that_may_not_be_listed_does_not_look_empty(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.new_store().rpartition("/")[0]
    with faulty(s3.address, share=0, latency=0) as (address, faults), fresh_clients():
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        faults.always = "denied"
        for pattern in ("**", "**/*.txt"):
            with pytest.raises(CorpusError, match=r"cannot be read: Access Denied; check the credentials"):
                find_sources(corpus_of(f"{bucket}/{pattern}"))


@pytest.mark.parametrize("folder", ["", "a", "a/b"])
def test_no_remote_folder_that_cannot_be_listed_is_skipped(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}")
    for name in ("x.txt", "a/x.txt", "a/b/x.txt"):
        store.write_bytes(name, b"text")
    closed, listed = f"{store.url}/{folder}".removeprefix("memory:/").rstrip("/"), MemoryFileSystem.ls

    def refuse(fs: MemoryFileSystem, path: str, **how: Any) -> Any:  # as a server of files does
        if path.rstrip("/") == closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(fs, path, **how)

    assert len(find_sources(corpus_of(f"{store.url}/**/*.txt"))) == 3
    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    monkeypatch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)  # as of most other file systems
    with pytest.raises(CorpusError, match="cannot be read: Permission denied"):
        find_sources(corpus_of(f"{store.url}/**/*.txt"))


def test_a_text_without_a_letter_at_any_line_end_is_cut_at_line_ends(tmp_path: Path) -> None:
    text = b"".join(b"sentence %d.\n" % number for number in range(1000))
    (tmp_path / "a.txt").write_bytes(text)
    corpus = CorpusConfig(name="a", paths=[str(tmp_path / "a.txt")])
    pieces = find_pieces(Store(str(tmp_path / "store")), corpus, 1024)
    assert len(pieces) > 5
    assert all(text[piece.start : piece.start + 1] == b"\n" for piece in pieces[1:])
