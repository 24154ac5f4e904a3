"""Pieces: what shards are made of. A piece is a small file, or a stretch of a large one that begins and ends between
records.

Where pieces begin depends on the file's bytes and `piece_bytes` alone. Their bytes are digested again while they are
read, so that nothing is made from others than those that were looked at. A piece's documents come from a stretch of its
file, and of a CSV file's first row as well; both are compared with the digest of the last look when they have been
read. Compressed files are digested packed. Where a library reads here and there in a file (Parquet), the file is
compared as a whole afterwards, by one process of a machine as long as it does not change.
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
    READ_HERE_AND_THERE,
    SourceFile,
    compression_of,
    csv_dialect,
    csv_header,
    digest_stretch,
    is_quoted,
    open_bytes,
    open_raw,
    parquet_groups,
    unpack,
)
from trainer.store.checked_files import require_content

LINE_END = re.compile(rb"\r?\n")

Cuts = Callable[[bytes, int], Iterator[int]]
"""The places in a block of bytes, from an offset on, where it may be cut."""


@dataclass(frozen=True)
class Piece:
    """The bytes `[start, end)` of a raw file (of a compressed one: all of it; of Parquet: row groups), and their
    number.

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

    def precedes(self, other: "Piece") -> bool:
        """Whether the file goes on with the other."""
        return (self.key, self.index + 1) == (other.key, other.index)


class Stretch(NamedTuple):
    """What a piece of a file is, apart from the file: `[start, end)` of it, the bytes that it holds, and its digest."""

    start: int
    end: int
    size: int
    sha256: str


def pieces_of(source: SourceFile, stretches: Sequence[Stretch]) -> list[Piece]:
    """A file's pieces."""
    last = len(stretches) - 1
    return [
        Piece(source.path, source.key, index, start, end, size, index == last, sha256, source.size)
        for index, (start, end, size, sha256) in enumerate(stretches)
    ]


def assigned(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Pieces in so many hands, each by a hash of its name: a changed or an added one changes one hand only."""
    hands: list[list[Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        digest = hashlib.sha256(f"{piece.key}#{piece.index}".encode()).digest()
        hands[int.from_bytes(digest[:8], "little") % count].append(piece)
    return hands


def digest_stretches(source: SourceFile, corpus: CorpusConfig, piece_bytes: int) -> list[Stretch]:
    """Cut a file into stretches of about `piece_bytes`, and digest each."""
    if corpus.format in UNIT_CUTS:
        whole = digest_stretch(source.path, 0, source.size)
        bounds, sizes = UNIT_CUTS[corpus.format](source, piece_bytes)
        groups = zip(pairwise(bounds), sizes, strict=True)
        return [Stretch(start, end, size, f"{whole}:{start}-{end}") for (start, end), size in groups]
    bounds = [0, *_cuts(source, corpus, piece_bytes), source.size]
    digests = [digest_stretch(source.path, start, end) for start, end in pairwise(bounds)]
    if corpus.format == "csv" and len(digests) > 1:
        # The first row names the columns of every piece.
        header = digest_stretch(source.path, 0, csv_header(source.path, corpus)[1])
        digests = [digests[0], *(f"{header}:{digest}" for digest in digests[1:])]
    return [
        Stretch(start, end, end - start, digest) for (start, end), digest in zip(pairwise(bounds), digests, strict=True)
    ]


def is_cut_within_documents(corpus: CorpusConfig) -> bool:
    """Whether a piece may end within a document: where a file is one, rather than records."""
    return corpus.format in ("text", "source") and corpus.separator is None


def boundary(corpus: CorpusConfig) -> Cuts:
    """Where a stream of this format may be cut.

    A text that is one document is cut between a letter and a line end, where byte-level pre-tokenizers also cut, so its
    tokens are those of the whole.
    """
    if is_cut_within_documents(corpus):
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


def _cuts(source: SourceFile, corpus: CorpusConfig, piece_bytes: int) -> list[int]:
    """Offsets at which a large file may be cut, one after about every `piece_bytes`."""
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
        f"{source.path}: no end of a record within {MAX_RECORD >> 20} MiB after byte {offset}; is this the right "
        "format?"
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
"""Of formats whose library reads here and there in a file: at which of its units it is cut, such as row groups, and
how many bytes each piece then holds.
"""


class RawBytes:
    """The bytes `[start, end)` of a raw file as `stream`, unpacked if the file is compressed, digested as they are in
    it.
    """

    def __init__(self, path: str, start: int = 0, end: int = sys.maxsize) -> None:
        self._path, self._open = path, ExitStack()
        self._stretch: _Stretch | None = None
        self.stream: IO[bytes]
        compression = compression_of(path)
        if compression == "zip":  # whose list of contents is at its end
            self.stream = self._open.enter_context(open_raw(path))
            return
        self._stretch = self._open.enter_context(_Stretch(path, start, end))
        self.stream = self._open.enter_context(io.BufferedReader(self._stretch, 2**20))
        if compression is not None:
            self.stream = self._open.enter_context(unpack(self.stream, compression))

    def require(self, sha256: str) -> None:
        """Raise `ChangedFile` unless the bytes, those included that were not asked for, have this digest."""
        found = self._stretch.digest() if self._stretch else digest_stretch(self._path, 0, sys.maxsize)
        if found != sha256:
            raise _changed(self._path, f"sha256 {found[:12]}… was found, {sha256[:12]}… was expected")

    def __enter__(self) -> "RawBytes":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()


@contextmanager
def open_piece(piece: Piece, corpus: CorpusConfig) -> Iterator[IO[bytes]]:
    """A stream of a piece's bytes; of Parquet, the whole file.

    At the end of the block, raises `ChangedFile` unless they are those of the last look. So it does in place of any
    error that reading them led to, but not if the reader gives up early: then nothing is compared.
    """
    with ExitStack() as open_files:
        if corpus.format in READ_HERE_AND_THERE:
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
    """Raise `ChangedFile` unless a piece that was read in part has the bytes of the last look."""
    with open_piece(piece, corpus):
        pass


class RawFile(NamedTuple):
    """A raw file: its name for people, which is also what it is remembered by, where its bytes are, and their
    digest.
    """

    name: str
    path: str
    sha256: str


def require_file(file: RawFile) -> None:
    """Raise `ChangedFile` unless a raw file is as a whole what it was at the last look."""
    try:
        require_content(file.path, file.sha256)
    except WrongContent as error:
        raise _changed(file.name, f"its sha256 is not {file.sha256[:12]}… any more") from error


def _require_same(piece: Piece, corpus: CorpusConfig, raw: RawBytes | None) -> None:
    before, _, sha256 = piece.sha256.rpartition(":")
    if raw is None:
        require_file(RawFile(piece.path, piece.path, before))
        return
    raw.require(sha256)
    if before:  # of a CSV file's later pieces, the first row's digest
        with RawBytes(piece.path, 0, csv_header(piece.path, corpus)[1]) as header:
            header.require(before)


def _changed(path: str, difference: str) -> ChangedFile:
    return ChangedFile(
        f"{path} has changed since it was looked at, or is damaged: {difference}; run this again: the file is looked "
        "at anew, so put back a copy first if it is damaged",
        path,
    )


class _Stretch(io.RawIOBase):
    """The bytes `[start, end)` of a file, digested as they are read, in order."""

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
        """The SHA-256 of all of them, after the rest was read."""
        while self.read(2**20):
            check_stop()
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()
