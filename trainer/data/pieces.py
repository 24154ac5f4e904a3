"""Pieces, from which shards are built. A piece is a small file, or a range of a large one that begins and ends between
records.

The bounds of pieces depend only on the file's bytes and `piece_bytes`. The bytes are hashed again while they are read,
so that nothing is built from bytes other than those that were found. A piece's documents come from its range of the
file and, for CSV, from the file's first row; both are compared with their earlier digests after reading. For compressed
files the compressed bytes are hashed. If a library reads a file in random order (Parquet), the whole file is compared
afterwards, by one process per machine while the file does not change.
"""

import csv
import hashlib
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Any, NamedTuple, cast

from trainer.common.errors import ChangedFile, CorpusError, WrongContent
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.data.raw_files import (
    MAX_RECORD,
    RANDOM_ACCESS,
    SourceFile,
    compression_of,
    csv_dialect,
    csv_header,
    digest_range,
    is_quoted,
    open_bytes,
    open_raw,
    parquet_groups,
    unpack,
)
from trainer.store.checked_files import require_content

LINE_END = re.compile(rb"\r?\n")

Cuts = Callable[[bytes, int], Iterator[int]]
"""Yields the positions in a block of bytes, from an offset on, where it may be cut."""


@dataclass(frozen=True)
class Piece:
    """The bytes `[start, end)` of a raw file (a compressed file: all of it; Parquet: row groups), and their index.

    `size` is the size of its content in bytes (Parquet: uncompressed); `file_bytes` is the stored size of the file.
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

    def precedes(self, other: "Piece") -> bool:
        """Whether the other is the next piece of the same file."""
        return (self.key, self.index + 1) == (other.key, other.index)


class PieceRange(NamedTuple):
    """A piece without its file: the range `[start, end)`, the size of its content in bytes, and its digest."""

    start: int
    end: int
    size: int
    sha256: str


def pieces_of(source: SourceFile, ranges: Sequence[PieceRange]) -> list[Piece]:
    """The pieces of a file."""
    last = len(ranges) - 1
    return [
        Piece(source.path, source.key, index, start, end, size, index == last, sha256, source.size)
        for index, (start, end, size, sha256) in enumerate(ranges)
    ]


def assigned(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Pieces in `count` groups, each by a hash of its name, so a changed or added piece changes one group only."""
    groups: list[list[Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        digest = hashlib.sha256(f"{piece.key}#{piece.index}".encode()).digest()
        groups[int.from_bytes(digest[:8], "little") % count].append(piece)
    return groups


def digest_ranges(source: SourceFile, corpus: CorpusConfig, piece_bytes: int) -> list[PieceRange]:
    """Cut a file into ranges of about `piece_bytes`, and hash each."""
    if corpus.format in UNIT_CUTS:
        whole = digest_range(source.path, 0, source.size)
        bounds, sizes = UNIT_CUTS[corpus.format](source, piece_bytes)
        groups = zip(pairwise(bounds), sizes, strict=True)
        return [PieceRange(start, end, size, f"{whole}:{start}-{end}") for (start, end), size in groups]
    bounds = [0, *_cuts(source, corpus, piece_bytes), source.size]
    digests = [digest_range(source.path, start, end) for start, end in pairwise(bounds)]
    if corpus.format == "csv" and len(digests) > 1:
        # Every piece needs the first row, which has the columns' names.
        header = digest_range(source.path, 0, csv_header(source.path, corpus)[1])
        digests = [digests[0], *(f"{header}:{digest}" for digest in digests[1:])]
    return [
        PieceRange(start, end, end - start, digest)
        for (start, end), digest in zip(pairwise(bounds), digests, strict=True)
    ]


def is_cut_within_documents(corpus: CorpusConfig) -> bool:
    """Whether a piece may end within a document: if a file is one document, not records."""
    return corpus.format in ("text", "source") and corpus.separator is None


def boundary(corpus: CorpusConfig) -> Cuts:
    """Where a file of this format may be cut.

    A file that is one document is cut between a letter and a line end. Byte-level pre-tokenizers split there too, so
    the pieces' tokens are those of the whole.
    """
    if is_cut_within_documents(corpus):
        return text_cuts
    before = b"" if corpus.separator is None else rb"(?=" + re.escape(corpus.separator.encode()) + rb"\r?\n)"
    pattern = re.compile(rb"\n" + before)
    return lambda block, start: (match.end() for match in pattern.finditer(block, start))


def text_cuts(block: bytes, start: int) -> Iterator[int]:
    """The positions between a letter of any script and a line end; if there are none, those before line ends."""
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
    """A text in blocks of at least `block_bytes`, each cut at the next of its `text_cuts`.

    No line end is checked more than twice, even if no letter precedes any of them.
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


def _cuts(source: SourceFile, corpus: CorpusConfig, piece_bytes: int) -> list[int]:
    """Offsets at which to cut a large file, about `piece_bytes` apart."""
    if source.size <= piece_bytes or compression_of(source.path):
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
        f"{source.path}: no record ends within {MAX_RECORD >> 20} MiB after byte {offset}; check that the format is "
        "right"
    )


def _csv_cuts(source: SourceFile, dialect: dict[str, Any], piece_bytes: int) -> list[int]:
    """Cuts between the records of the CSV reader, because only it knows which line ends are inside quotes."""
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
                pass  # reading the piece reports it, and also begins a new record after it
            if target <= consumed < source.size:
                cuts.append(consumed)
                target = consumed + piece_bytes


def _parquet_cuts(source: SourceFile, piece_bytes: int) -> tuple[list[int], list[int]]:
    """Row-group numbers at which to cut into pieces of about `piece_bytes`, and the size of each piece."""
    groups = parquet_groups(source.path)
    bounds, sizes = [0], [0]
    for number, group in enumerate(groups):
        size = group.total_byte_size
        if sizes[-1] and sizes[-1] + size > piece_bytes:
            bounds.append(number)
            sizes.append(0)
        sizes[-1] += size
    return [*bounds, len(groups)], sizes


UNIT_CUTS = {"parquet": _parquet_cuts}
"""For formats read in random order: a function that returns the units, such as row groups, at which to cut a file, and
the bytes of each piece.
"""


class RawBytes:
    """The bytes `[start, end)` of a raw file as `stream`, decompressed if needed; the stored bytes are hashed."""

    def __init__(self, path: str, start: int = 0, end: int = sys.maxsize) -> None:
        self._path, self._open = path, ExitStack()
        self._range: _HashedRange | None = None
        self.stream: IO[bytes]
        compression = compression_of(path)
        if compression == "zip":  # its directory is at the end, so it is not read in order
            self.stream = self._open.enter_context(open_raw(path))
            return
        self._range = self._open.enter_context(_HashedRange(path, start, end))
        self.stream = self._open.enter_context(io.BufferedReader(self._range, 2**20))
        if compression is not None:
            self.stream = self._open.enter_context(unpack(self.stream, compression))

    def require(self, sha256: str) -> None:
        """Raise `ChangedFile` unless the bytes, including those not read yet, have this digest."""
        found = self._range.digest() if self._range else digest_range(self._path, 0, sys.maxsize)
        if found != sha256:
            raise _changed(self._path, f"sha256 is {found[:12]}…, expected {sha256[:12]}…")

    def __enter__(self) -> "RawBytes":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()


@contextmanager
def open_piece(piece: Piece, corpus: CorpusConfig) -> Iterator[IO[bytes]]:
    """A stream of a piece's bytes; for Parquet, the whole file.

    At the end of the block, raises `ChangedFile` if the digest differs, also instead of any error raised while reading.
    If the reader stops early (`GeneratorExit`), nothing is compared.
    """
    with ExitStack() as open_files:
        if corpus.format in RANDOM_ACCESS:
            raw, stream = None, open_files.enter_context(open_bytes(piece.path))
        else:
            raw = open_files.enter_context(RawBytes(piece.path, piece.start, piece.end))
            stream = raw.stream
        try:
            yield stream
        except Exception:
            _require_same(piece, corpus, raw)
            raise
        _require_same(piece, corpus, raw)


def require_same(piece: Piece, corpus: CorpusConfig) -> None:
    """Raise `ChangedFile` unless a partly read piece has its digest."""
    with open_piece(piece, corpus):
        pass


class RawFile(NamedTuple):
    """A raw file: its name in messages and in the cache, the path of its bytes, and their digest."""

    name: str
    path: str
    sha256: str


def require_file(file: RawFile) -> None:
    """Raise `ChangedFile` unless a whole raw file has its digest."""
    try:
        require_content(file.path, file.sha256)
    except WrongContent as error:
        raise _changed(file.name, f"its sha256 is no longer {file.sha256[:12]}…") from error


def _require_same(piece: Piece, corpus: CorpusConfig, raw: RawBytes | None) -> None:
    before, _, sha256 = piece.sha256.rpartition(":")
    if raw is None:
        require_file(RawFile(piece.path, piece.path, before))
        return
    raw.require(sha256)
    if before:  # the first row's digest, for later pieces of a CSV file
        with RawBytes(piece.path, 0, csv_header(piece.path, corpus)[1]) as header:
            header.require(before)


def _changed(path: str, difference: str) -> ChangedFile:
    return ChangedFile(
        f"{path} has changed since it was read first, or is damaged: {difference}; run this again to read the file "
        "again; if it is damaged, restore it first",
        path,
    )


class _HashedRange(io.RawIOBase):
    """The bytes `[start, end)` of a file, hashed as they are read in order."""

    def __init__(self, path: str, start: int, end: int) -> None:
        super().__init__()
        self._file, self._left, self._digest = open_bytes(path), end - start, hashlib.sha256()
        self._file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        part = memoryview(buffer)[: self._left]
        count = cast(io.BufferedReader, self._file).readinto(part)
        self._digest.update(part[:count])
        self._left -= count
        return count

    def digest(self) -> str:
        """The SHA-256 of all bytes, after reading the rest."""
        while self.read(2**20):
            check_stop()
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()
