"""Raw bytes digested while they are read, so that nothing is made from others than those that were looked at.

A piece's documents come from a stretch of its file, and of a CSV file's first row as well; both are compared with the
digest of the last look when they have been read. Compressed files are digested packed. Where a library reads here and
there in a file (Parquet), the file is compared as a whole afterwards, by one process of a machine as long as it does
not change.
"""

import hashlib
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, NamedTuple, cast

from fsspec.core import get_compression

from trainer.common.errors import ChangedFile, WrongContent
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.data.pieces import Piece
from trainer.data.raw_files import READ_HERE_AND_THERE, csv_header, digest_stretch, open_bytes, open_raw, unpack
from trainer.store.checked_files import require_content


class RawBytes:
    """The bytes `[start, end)` of a raw file as `stream`, unpacked if the file is compressed, digested as they are in
    it.
    """

    def __init__(self, path: str, start: int = 0, end: int = sys.maxsize) -> None:
        self._path, self._open = path, ExitStack()
        self._stretch: _Stretch | None = None
        self.stream: IO[bytes]
        compression = get_compression(path, "infer")
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
