"""The raw files of a corpus: finding them, checking their first records, and detecting which have changed."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NoReturn

import fsspec
from fsspec.implementations.local import LocalFileSystem

from trainer.common.bad_records import BadRecords
from trainer.common.display import count, plural
from trainer.common.errors import ChangedFile, CorpusError, RecordError, brief
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.data.matching_files import MAGIC, find_local, find_remote
from trainer.data.pieces import Piece, PieceRange, digest_ranges, pieces_of
from trainer.data.raw_files import SourceFile, format_by_name, is_tar, open_as, open_raw, reading
from trainer.data.readers import open_corpus, read_head
from trainer.data.tables import FORMATS, Span
from trainer.records.sealed import recall_sealed, write_sealed
from trainer.store.checked_files import RACY_SECONDS, local_version
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 3
"""The version of the cache of raw files."""

FILES_AT_ONCE = 32
"""Files that a thread handles per task; a task costs as much as one small file."""

PIECE_BYTES = "data.shards.piece_bytes"
"""The setting of where files are cut. It is recorded outside the identity, which the pieces are part of already."""

CSV_READING = 2
"""Increase it when csv files are read differently, so that artifacts of the old reading are not reused."""


def find_sources(corpus: CorpusConfig, what: str = "corpus") -> list[SourceFile]:
    """All files of a corpus, sorted by key; a file found by several paths, or through links, is listed once.

    Raises `CorpusError` for a path without matches, a folder that cannot be listed, and an empty corpus; its message
    calls the files a `what`.
    """
    found: dict[str, SourceFile] = {}
    for pattern in corpus.paths:
        with reading(pattern):
            matches = list(_match(pattern))
            if not matches:
                _refuse(corpus, pattern, what)
        for real, source in matches:
            if real not in found or source.path == real:
                found[real] = source
    if not sum(source.size for source in found.values()):
        raise CorpusError(f"{what} {corpus.name!r} is empty: {plural(len(found), 'file')}, 0 bytes")
    return sorted(found.values(), key=lambda source: (source.key, source.path))


def require_local(corpus: CorpusConfig) -> None:
    """Raise `CorpusError` for a local path without matches: a quick check before libraries are loaded."""
    for pattern in corpus.paths:
        if "://" in pattern or os.path.isfile(pattern):
            continue
        with reading(pattern):
            if next(_match(pattern), None) is None:
                _refuse(corpus, pattern)


def find_pieces(
    store: Store,
    corpus: CorpusConfig,
    piece_bytes: int,
    advance: Callable[[int], None] = lambda size: None,
    on_changed: Callable[[int], None] = lambda size: None,
    what: str = "corpus",
) -> list[Piece]:
    """Cut and hash every file of a corpus. Files with unchanged size and time are not read again, also if another job
    has read other files of a corpus of this name in between.

    Raises as `find_sources`. `on_changed` is called with the bytes of all files to read, and `advance` with those of
    each file that was read.
    """
    cut_by = {**corpus.model_dump(exclude={"paths"}), "max_bad_records": 0}  # which does not matter here
    layout = fingerprint([FORMAT, cut_by, piece_bytes])
    memory = f"cache/seen-{corpus.name}-{layout}.json"
    known = _remembered(store, memory)
    now = time.time()
    sources = find_sources(corpus, what)

    def look(group: Sequence[SourceFile]) -> list[tuple[str, list[PieceRange]]]:
        found = []
        for source in group:
            check_stop()
            with reading(source.path):
                found.append((source.path, digest_ranges(source, corpus, piece_bytes)))
            advance(source.size)
        return found

    seen = {source.path: _recall(known, source) for source in sources}
    changed = [source for source in sources if seen[source.path] is None]
    on_changed(sum(source.size for source in changed))
    groups = [changed[start : start + FILES_AT_ONCE] for start in range(0, len(changed), FILES_AT_ONCE)]
    with ThreadPoolExecutor() as pool:
        for found in pool.map(look, groups):
            seen.update(found)
    if changed:
        others = [(path, entry) for path, entry in known.items() if path not in seen and _may_exist(path)]
        fresh = {
            source.path: [source.size, source.version, seen[source.path]]
            for source in sources
            if not _racy(source, now)
        }
        write_sealed(store, memory, {"files": dict(others[-MOST_OTHERS:]) | fresh}, indent=None)
    return [piece for source in sources for piece in pieces_of(source, seen[source.path] or [])]


def reading_options(corpus: CorpusConfig) -> dict[str, Any]:
    """The options that determine how a corpus's files are read; part of the identity of their artifacts."""
    options = corpus.model_dump(exclude={"name", "paths", "max_bad_records"})
    if corpus.format != "csv":
        del options["quoting"]  # it does not apply to other formats
        return options
    return {**options, "csv": CSV_READING}


def named_reading(path: str) -> str:
    """The endings of a file's name, which determine how it is read: compression and delimiter."""
    endings = "".join(PurePosixPath(path).suffixes[-2:]).lower()
    # As in questions.tsv.part1.gz: `csv_dialect` looks for it in the whole name.
    return f".tsv{endings}" if ".tsv" not in endings and ".tsv" in path.rsplit("/", 1)[-1].lower() else endings


@contextmanager
def forgetting_changed(store: Store) -> Iterator[None]:
    """Remove the cache entry of a file that has changed, so that it is read again next time."""
    try:
        yield
    except ChangedFile as error:
        for name in store.names("cache"):
            if name.startswith("seen-") and error.path in (known := _remembered(store, f"cache/{name}")):
                rest = {path: entry for path, entry in known.items() if path != error.path}
                write_sealed(store, f"cache/{name}", {"files": rest}, indent=None)
        raise


def _match(pattern: str) -> Iterator[tuple[str, SourceFile]]:
    """The files of a path or a pattern, each with an identity that does not depend on how it was found."""
    if "::" in pattern and "://" in pattern:
        raise CorpusError(f"{pattern!r} cannot be read: it is a file within an archive; unpack it, and use its files")
    try:
        fs, full = fsspec.url_to_fs(pattern)
    except (ImportError, ValueError) as error:  # an address that fsspec does not support
        raise CorpusError(f"{pattern!r} cannot be read: {brief(error)}") from error
    if isinstance(fs, LocalFileSystem):
        for path, key, real, status in find_local(full):
            yield real, SourceFile(path, key, status.st_size, local_version(status))
        return
    fs.invalidate_cache()  # cached listings may be outdated
    if fs.isfile(full):
        entries, fixed = {full: fs.info(full)}, full.rsplit("/", 1)[0]
    else:
        entries, fixed = find_remote(fs, full), MAGIC.split(full, maxsplit=1)[0].rsplit("/", 1)[0]
    for path, info in entries.items():
        if info["type"] == "file":
            version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or ""
            url = path if "://" not in pattern else fs.unstrip_protocol(path)
            if "::" in url:
                raise CorpusError(f"{url} cannot be read: its name has ::, as a file within an archive; rename it")
            yield url, SourceFile(path=url, key=path[len(fixed) + 1 :], size=int(info["size"]), version=str(version))


def _refuse(corpus: CorpusConfig, pattern: str, what: str = "corpus") -> NoReturn:
    """Raise the error of a path that nothing matches."""
    fs, full = fsspec.url_to_fs(pattern)
    if pattern and fs.isdir(full):
        folder = pattern.rstrip("/")
        raise CorpusError(
            f"{what} {corpus.name!r}: {pattern!r} is a folder; list its files with {f'{folder}/*'!r}, or "
            f"{f'{folder}/**'!r} to include subfolders"
        )
    where = "the bucket or server, and the path" if "://" in pattern else "the path, relative to this folder"
    raise CorpusError(f"{what} {corpus.name!r}: no file matches {pattern!r}; check {where}")


MOST_OTHERS = 100_000
"""Most files that are remembered besides those of the present job: remote ones may no longer exist."""


def _may_exist(path: str) -> bool:
    return "://" in path or os.path.exists(path)


def _racy(source: SourceFile, now: float) -> bool:
    try:
        return now - float(source.version.partition(" ")[0]) < RACY_SECONDS
    except ValueError:
        return not source.version


def _recall(known: dict[str, Any], source: SourceFile) -> list[PieceRange] | None:
    """The cached ranges of a file, if it has not changed."""
    if (entry := known.get(source.path)) and entry[:2] == [source.size, source.version]:
        return [PieceRange(*each) for each in entry[2]]
    return None


def _remembered(store: Store, key: str) -> dict[str, Any]:
    """The cached entries by path."""
    found: dict[str, Any] = (recall_sealed(store, key, "reading all raw files again") or {"files": {}})["files"]
    return found


FILES = 16
"""Files of a corpus that are checked, evenly spread over all of them."""

RECORDS, HEAD_BYTES = 256, 2**20
"""The number of records of a file that are checked, and about how many bytes of text."""

MOST_NULLS = 0.01
"""With a greater share of NUL characters a file counts as binary; texts may contain other control characters."""

FEW_NULLS = 32
"""NUL characters that any file may have."""

ALTERNATING = re.compile(r"(?:\0[^\0]|[^\0]\0){2,}")
"""Latin letters in UTF-16, in which every other byte is NUL."""


class _Enough(Exception):
    """Enough bad records of a file were read."""


def look_at_text(corpus: CorpusConfig, paths: Sequence[str]) -> None:
    """Read the first records of some of a corpus's files in the same way as tokenization.

    Raises `CorpusError` for a file that cannot be read, lacks the column or is binary, and `RecordError` for more bad
    records than may be skipped. Warns if all of them are bad and may be skipped.
    """
    bad, good = BadRecords(corpus.max_bad_records), 0
    warn_of_records_as_text(f"corpus {corpus.name!r}", corpus.format, paths)
    for path in _spread(paths):
        check_stop()
        good += _look_at(path, corpus, bad)
    if bad.count and not good:
        log.warning(
            "corpus %r: none of the first %s can be read: %s; check data.corpora: its paths and format",
            corpus.name, plural(bad.count, "record"), "; ".join(bad.first),
        )  # fmt: skip


def warn_of_records_as_text(what: str, form: str, paths: Sequence[str]) -> None:
    """Warn about files that are read as text, although their names are those of files with records."""
    # Source code may be in such files too.
    if form not in (*FORMATS, "source") and (named := next(filter(None, map(format_by_name, paths)), None)):
        log.warning(
            "%s: by their names some files have the format %s, but they are read as %s, including everything between "
            "the records' texts; if that is not intended, set their format to %s", what, named, form, named,
        )  # fmt: skip


def files_of(pieces: Sequence[Piece]) -> list[str]:
    """The paths of the files of some pieces."""
    return list(dict.fromkeys(piece.path for piece in pieces))


def _spread(paths: Sequence[str]) -> list[str]:
    chosen = min(FILES, len(paths))
    return [paths[number * len(paths) // chosen] for number in range(chosen)]


def _look_at(path: str, corpus: CorpusConfig, bad: BadRecords) -> int:
    """The number of good records at the beginning of a file."""
    if is_tar(path):
        raise CorpusError(f"corpus {corpus.name!r}: {path} is a tar archive; unpack it, and use its files")
    documents = characters = nulls = alternating = 0
    before, text = bad.count, ""

    def on_bad(error: RecordError) -> None:
        bad.add(error)
        if bad.count == before + RECORDS:
            raise _Enough

    with suppress(_Enough):
        for document in islice(read_head(path, corpus, on_bad), RECORDS):
            text = document.text[:HEAD_BYTES].decode(errors="ignore")
            documents += 1
            characters += len(text)
            nulls += text.count("\0")
            alternating += sum(map(len, ALTERNATING.findall(text))) if "\0" in text else 0
            if characters >= HEAD_BYTES:
                break
    if nulls > max(MOST_NULLS * characters, FEW_NULLS):
        utf16 = alternating > 0.5 * characters
        like = "as in UTF-16 without a byte order mark" if utf16 else "as in a binary file, or in UTF-16"
        convert = (
            f"convert it, such as by `iconv -f {_utf16(path)} -t UTF-8`, or leave" if utf16 else "convert it, or leave"
        )
        raise CorpusError(
            f"corpus {corpus.name!r}: {path}: {nulls / characters:.0%} of its first {count(characters)} characters are "
            f"NUL, {like}; expected text in UTF-8: {convert} the file out of data.corpora's paths"
        )
    by_lines = corpus.format == "lines" or corpus.separator is not None
    if by_lines and documents == 1 and "\r" in text.rstrip("\r") and "\n" not in text:
        log.warning(
            "corpus %r: %s is one document, because its lines end in carriage returns alone; if it holds several, "
            "convert them, such as by `tr '\\r' '\\n'`", corpus.name, path,
        )  # fmt: skip
    return documents


def _utf16(path: str) -> str:
    """The byte order of a UTF-16 file with Latin letters: in big-endian order, the first byte of each is 0."""
    with open_raw(path) as file:
        head = file.read(HEAD_BYTES)
    return "UTF-16BE" if head[::2].count(0) > head[1::2].count(0) else "UTF-16LE"


LOOKED_AT = 1000
"""Records checked for their fields, which may differ."""


def column_names(piece: Piece, corpus: CorpusConfig) -> list[str]:
    """The columns of a piece's file; for JSON Lines the fields of its first records; empty for formats without any."""
    if corpus.format not in FORMATS:
        return []
    with reading(piece.path), open_as(corpus.format, piece.path) as file:
        table = open_corpus(file, Span(piece.path, piece.path), corpus)
        if table.columns is not None:
            return table.columns
        return list(dict.fromkeys(name for record in islice(table.records(()), LOOKED_AT) for name in record.values))
