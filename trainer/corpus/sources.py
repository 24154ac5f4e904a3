"""Raw files: finding them, cutting the large ones into pieces, and knowing what changed since the last look.

A piece is what a shard is made of: a small file, or a stretch of a large one that begins and ends between records. Where
pieces begin depends on the file's bytes and `piece_bytes` alone.
"""

import csv
import io
import logging
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import IO, Any, cast

import fsspec
from fsspec.compression import compr
from fsspec.core import get_compression

from trainer.common.errors import ArtifactError, CorpusError, PipelineError, StorageError, brief, reason_of
from trainer.common.outages import passes
from trainer.common.stopping import check_stop
from trainer.config.jobs import CorpusConfig
from trainer.corpus.csv_files import csv_dialect, is_quoted
from trainer.records.seals import read_sealed, write_sealed
from trainer.store.digests import digest_stream
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store
from trainer.store.verified import RACY_SECONDS

log = logging.getLogger(__name__)

FORMAT = 2
"""Of what is remembered of the raw files."""

MAX_RECORD = 64 * 2**20
"""Bytes that one record, and so a process's memory for it, may take."""

BOM = b"\xef\xbb\xbf"

FILES_AT_ONCE = 32
"""Files that a thread looks at between two hand-overs, which cost as much as looking at a small file."""

CSV_READING = 2
"""Raised when csv files are read otherwise, so that what was made of them is not taken for what would be made now."""

LINE_END = re.compile(rb"\r?\n")


@dataclass(frozen=True)
class SourceFile:
    """A raw file: `key` is its path below the glob's fixed part, `version` changes whenever its bytes may have (if known)."""

    path: str
    key: str
    size: int
    version: str


@dataclass(frozen=True)
class Piece:
    """The bytes `[start, end)` of a raw file (of a compressed one: all of it; of Parquet: row groups), and their number.

    `size` is what it holds, in bytes (of Parquet: unpacked); `file_bytes` is the whole file's size as it lies there.
    """

    path: str
    key: str
    index: int
    start: int
    end: int
    size: int
    last: bool
    sha256: str
    file_bytes: int = field(compare=False)  # of the file, not of this piece


Cuts = Callable[[bytes, int], Iterator[int]]
"""The places in a block of bytes, from an offset on, where it may be cut."""


def find_sources(corpus: CorpusConfig) -> list[SourceFile]:
    """All files of a corpus, sorted by key.

    Raises `CorpusError` for a path that matches nothing and for a corpus without a byte.
    """
    found: dict[str, SourceFile] = {}
    for pattern in corpus.paths:
        with reading(pattern):
            matches = list(_match(pattern))
            if not matches:
                raise CorpusError(f"corpus {corpus.name!r}: {_no_match(pattern)}")
        found.update({source.path: source for source in matches})
    if not sum(source.size for source in found.values()):
        raise CorpusError(f"corpus {corpus.name!r} is empty: {len(found)} files, 0 bytes")
    return sorted(found.values(), key=lambda source: (source.key, source.path))


def find_pieces(
    store: Store, corpus: CorpusConfig, piece_bytes: int, advance: Callable[[int], None] = lambda size: None
) -> list[Piece]:
    """Cut and digest every file of a corpus. Files not changed since the last look (size and time) are not read again."""
    layout = fingerprint([FORMAT, corpus.model_dump(exclude={"paths"}), piece_bytes, [each.name for each in fields(Piece)]])
    memory = f"cache/sources-{corpus.name}-{layout}.json"
    known = _remembered(store, memory)
    now = time.time()
    sources = find_sources(corpus)

    def recall(source: SourceFile) -> list[Piece] | None:
        entry = known.get(source.path)
        if entry and all(entry.get(name) == value for name, value in vars(source).items()):
            return [Piece(**piece) for piece in entry["pieces"]]
        return None

    def look(group: Sequence[SourceFile]) -> list[tuple[str, list[Piece]]]:
        found = []
        for source in group:
            check_stop()
            with reading(source.path):
                found.append((source.path, _digest_pieces(source, corpus, piece_bytes)))
            advance(source.size)
        return found

    pieces = {source.path: recall(source) for source in sources}
    changed = [source for source in sources if pieces[source.path] is None]
    groups = [changed[start : start + FILES_AT_ONCE] for start in range(0, len(changed), FILES_AT_ONCE)]
    with ThreadPoolExecutor() as pool:
        for found in pool.map(look, groups):
            pieces.update(found)
    if changed or len(known) > len(sources):
        fresh = {
            source.path: {**vars(source), "pieces": [vars(piece) for piece in pieces[source.path] or []]}
            for source in sources
            if not _racy(source, now)
        }
        write_sealed(store, memory, {"files": fresh}, indent=None)
    return [piece for source in sources for piece in pieces[source.path] or []]


def reading_options(corpus: CorpusConfig) -> dict[str, Any]:
    """How a corpus's files are read, which names what is made of them."""
    options = corpus.model_dump(exclude={"name", "paths", "max_bad_records"})
    if corpus.format != "csv":
        return {**options, "quoting": True}  # which says nothing of other formats, and was the default once
    return {**options, "csv": CSV_READING}


def open_raw(path: str, start: int = 0) -> IO[bytes]:
    """Open a raw file at a byte offset; .gz and .zst are unpacked (from their beginning only)."""
    compression = get_compression(path, "infer")
    if compression == "zstd":
        return unpack(open_bytes(path), compression)
    if compression is not None:
        unpacked: IO[bytes] = fsspec.open(path, "rb", compression=compression).open()
        return unpacked
    file = open_bytes(path)
    file.seek(start)
    return file


def unpack(file: IO[bytes], compression: str) -> IO[bytes]:
    """What is packed in an open file."""
    if compression == "zstd":
        import pyarrow as pa  # unlike fsspec's reader, reads every frame, and sees when the last one is cut short

        return io.BufferedReader(pa.input_stream(file, compression=compression))
    unpacked: IO[bytes] = compr[compression](file, mode="rb")
    return unpacked


def open_bytes(path: str) -> IO[bytes]:
    """Open a file as it is. Local ones directly: among many small files, fsspec's own work would be the most of it."""
    if "://" not in path:
        return open(path, "rb")
    # fsspec's own files have no readline with a limit.
    return io.BufferedReader(cast(io.RawIOBase, fsspec.open(path, "rb").open()), 2**20)


def is_compressed(path: str) -> bool:
    return get_compression(path, "infer") is not None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Say of a raw file that cannot be opened, is damaged, or is on a server that is away, which it is: a `CorpusError`."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if isinstance(error, OSError | EOFError | zlib.error) or passes(error):
            raise unreadable(path, error) from error
        raise


def unreadable(path: str, error: Exception) -> CorpusError:
    """The error for a raw file that cannot be opened or is damaged."""
    message = f"{path} cannot be read: {reason_of(error)}; check that the file is there, whole, and yours to read"
    return CorpusError(message, passes(error))


def csv_header(path: str, corpus: CorpusConfig) -> tuple[list[str], int]:
    """The names in a CSV file's first row, none if it is no CSV, and the bytes that the row takes (unpacked)."""
    taken = 0

    def lines(file: IO[bytes]) -> Iterator[str]:
        nonlocal taken
        while line := file.readline(MAX_RECORD):
            text = line.removeprefix(BOM) if taken == 0 else line
            taken += len(line)
            yield text.decode(errors="replace")

    with open_raw(path) as file:
        try:
            names = next(csv.reader(lines(file), **csv_dialect(corpus, path)), [])
        except csv.Error:
            names = []
    return names, taken


def _match(pattern: str) -> Iterator[SourceFile]:
    try:
        fs, full = fsspec.url_to_fs(pattern)
    except (ImportError, ValueError) as error:  # of a place that fsspec does not know
        raise CorpusError(f"{pattern!r} cannot be read: {brief(error)}") from error
    if fs.isfile(full):
        entries, fixed = {full: fs.info(full)}, full.rsplit("/", 1)[0]
    else:
        entries = fs.glob(full, detail=True)
        fixed = re.split(r"[*?\[]", full, maxsplit=1)[0].rsplit("/", 1)[0]
    for path, info in entries.items():
        if info["type"] == "file" or (info.get("islink") and not fs.isdir(path)):
            version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or ""
            if info.get("islink"):
                version = ""  # the listing's time is the link's own, not the file's
            url = path if "://" not in pattern else fs.unstrip_protocol(path)
            yield SourceFile(path=url, key=path[len(fixed) + 1 :], size=int(info["size"]), version=str(version))


def _no_match(pattern: str) -> str:
    """Why nothing matches, and what to do."""
    fs, full = fsspec.url_to_fs(pattern)
    if pattern and fs.isdir(full):
        folder = pattern.rstrip("/")
        return f"{pattern!r} is a folder; name its files: {f'{folder}/*'!r}, or {f'{folder}/**'!r} with those in its folders"
    return f"no file matches {pattern!r}; check the path, relative to this folder"


def _racy(source: SourceFile, now: float) -> bool:
    try:
        return now - float(source.version) < RACY_SECONDS
    except ValueError:
        return not source.version


def _remembered(store: Store, key: str) -> dict[str, Any]:
    """What the last look found, by path; nothing if that is damaged or cannot be read, as looking again costs time only."""
    try:
        found: dict[str, Any] = (read_sealed(store, key) or {"files": {}})["files"]
        return found
    except (ArtifactError, StorageError) as error:
        log.warning("%s: looking at all raw files again", error)
        return {}


def forget_source(store: Store, path: str) -> None:
    """Forget what the last looks found in a file, so that the next one reads it again."""
    for name in store.names("cache"):
        if name.startswith("sources-") and path in (known := _remembered(store, f"cache/{name}")):
            rest = {other: entry for other, entry in known.items() if other != path}
            write_sealed(store, f"cache/{name}", {"files": rest}, indent=None)


def _digest_pieces(source: SourceFile, corpus: CorpusConfig, piece_bytes: int) -> list[Piece]:
    if corpus.format == "parquet":
        whole = digest_stretch(source.path, 0, source.size)
        bounds, sizes = _parquet_cuts(source, piece_bytes)
        digests = [f"{whole}:{start}-{end}" for start, end in pairwise(bounds)]
    else:
        bounds = [0, *_cuts(source, corpus, piece_bytes), source.size]
        sizes = [end - start for start, end in pairwise(bounds)]
        digests = [digest_stretch(source.path, start, end) for start, end in pairwise(bounds)]
        if corpus.format == "csv" and len(digests) > 1:
            # The first row names the columns of every piece.
            header = digest_stretch(source.path, 0, csv_header(source.path, corpus)[1])
            digests = [digests[0], *(f"{header}:{digest}" for digest in digests[1:])]
    return [
        Piece(source.path, source.key, index, start, end, sizes[index], index == len(digests) - 1, digests[index], source.size)
        for index, (start, end) in enumerate(pairwise(bounds))
    ]


def digest_stretch(path: str, start: int, end: int) -> str:
    """The SHA-256 of the bytes `[start, end)` of a file, or of as many of them as there are."""
    with open_bytes(path) as file:
        file.seek(start)
        return digest_stream(file, end - start)


def _cuts(source: SourceFile, corpus: CorpusConfig, piece_bytes: int) -> list[int]:
    """Offsets at which a large file may be cut, one after about every `piece_bytes`."""
    if source.size <= piece_bytes or is_compressed(source.path):
        return []
    if corpus.format == "csv" and is_quoted(dialect := csv_dialect(corpus, source.path)):
        return _csv_cuts(source, dialect, piece_bytes)
    cuts: list[int] = []
    with open_raw(source.path) as file:
        while (target := (cuts[-1] if cuts else 0) + piece_bytes) < source.size:
            found = _find_after(file, target, boundary(corpus), source)
            if found is None or found >= source.size:
                break
            cuts.append(found)
    return cuts


def boundary(corpus: CorpusConfig) -> Cuts:
    """Where a stream of this format may be cut.

    A text that is one document is cut between a letter and a line end, where byte-level pre-tokenizers also cut, so its
    tokens are those of the whole.
    """
    if corpus.format in ("text", "source") and corpus.separator is None:
        return text_cuts
    before = b"" if corpus.separator is None else rb"(?=" + re.escape(corpus.separator.encode()) + rb"\r?\n)"
    pattern = re.compile(rb"\n" + before)
    return lambda block, start: (match.end() for match in pattern.finditer(block, start))


def text_cuts(block: bytes, start: int) -> Iterator[int]:
    """The places between a letter, of any script, and a line end; before any line end if there is no letter at one."""
    found = False
    for cut in _after_letters(block, start):
        found = True
        yield cut
    if not found:
        yield from _line_ends(block, start)


def _after_letters(block: bytes, start: int) -> Iterator[int]:
    return (
        match.start()
        for match in LINE_END.finditer(block, start)
        if block[max(0, match.start() - 4) : match.start()].decode(errors="ignore")[-1:].isalpha()
    )


def _line_ends(block: bytes, start: int) -> Iterator[int]:
    return (match.start() for match in LINE_END.finditer(block, start) if match.start() > start)


def blocks_of(text: bytes, block_bytes: int) -> Iterator[bytes]:
    """A text in blocks of at least so many bytes, cut at the first of its `text_cuts` after these.

    No line end is looked at more than twice, also where no letter stands before any of them.
    """
    start, letter = 0, -1
    while len(text) - start > 2 * block_bytes:
        least = start + block_bytes
        if letter < least:
            letter = next(_after_letters(text, least), len(text))
        at = letter if letter < len(text) else next(_line_ends(text, least), len(text))
        if at == len(text):
            break
        yield text[start:at]
        start = at
    yield text[start:]


def _find_after(file: IO[bytes], offset: int, cuts: Cuts, source: SourceFile) -> int | None:
    """The first cut at or after `offset - 1`, or None if the file ends before one."""
    overlap, block_bytes = 4096, 2**20
    position = offset - 1
    while position < min(source.size, offset + MAX_RECORD):
        check_stop()
        file.seek(position)
        block = file.read(block_bytes + overlap)
        if (found := next(cuts(block, 0), None)) is not None:
            return position + found
        position += block_bytes
    if position >= source.size:
        return None
    raise CorpusError(
        f"{source.path}: no end of a record within {MAX_RECORD >> 20} MiB after byte {offset}; is this the right format?"
    )


def _csv_cuts(source: SourceFile, dialect: dict[str, Any], piece_bytes: int) -> list[int]:
    """Cuts as the CSV reader itself sees records, because only it knows which line ends lie inside quotes."""
    cuts: list[int] = []
    consumed = 0

    def lines(file: IO[bytes]) -> Iterator[str]:
        nonlocal consumed
        for line in file:
            consumed += len(line)
            yield line.decode("utf-8", errors="replace")

    target = piece_bytes
    with open_raw(source.path) as file:
        rows = csv.reader(lines(file), **dialect)
        while True:
            check_stop()
            try:
                next(rows)
            except StopIteration:
                return cuts
            except csv.Error:
                pass  # the reader reports it, and begins a new record after it as well
            if target <= consumed < source.size:
                cuts.append(consumed)
                target = consumed + piece_bytes


def _parquet_cuts(source: SourceFile, piece_bytes: int) -> tuple[list[int], list[int]]:
    """Row-group numbers at which to cut, so that pieces hold about `piece_bytes` each, and what each piece holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_bytes(source.path) as file:
            metadata = pq.ParquetFile(file).metadata
    except pa.ArrowInvalid as error:
        raise CorpusError(f"{source.path} is not a Parquet file: {error}") from error
    bounds, sizes = [0], [0]
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if sizes[-1] and sizes[-1] + size > piece_bytes:
            bounds.append(group)
            sizes.append(0)
        sizes[-1] += size
    return [*bounds, metadata.num_row_groups], sizes
