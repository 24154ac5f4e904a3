"""Raw files: opening local and remote, compressed and plain ones, their sizes, and hints in errors about bad ones."""

import bz2
import csv
import errno
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import IO, Any, Protocol, cast
from unicodedata import normalize

import fsspec
from fsspec.compression import compr
from fsspec.core import get_compression

from trainer.common.display import some
from trainer.common.errors import CorpusError, PipelineError, reason_of
from trainer.common.transient import is_transient
from trainer.config.corpora import CorpusConfig
from trainer.store.checked_files import digest_stream
from trainer.store.remedies import credentials_explained, is_of_remote, remedy_of_s3

FORMAT_OF_ENDING = {"csv": "csv", "tsv": "csv", "jsonl": "jsonl", "json": "jsonl", "parquet": "parquet"}
"""The format of files, by the ending of their names."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""The usual delimiters of columns."""

QUOTE = "; if quote characters delimit texts here, set quoting to true"
UNQUOTE = "; if quote characters are plain text here, set quoting to false"


class CsvSettings(Protocol):
    """Settings for reading csv files: of a corpus, or of a labelled data set."""

    @property
    def delimiter(self) -> str | None: ...

    @property
    def quoting(self) -> bool | None: ...


def csv_dialect(settings: CsvSettings, path: str) -> dict[str, Any]:
    """The options of `csv.reader` for a file: delimiter and quoting as configured, else by the file's name.

    By default files with tabs are read without quoting, as a quote in them usually belongs to the text. Quoted files
    are read strictly, because a stray quote would otherwise silently join many records into one text.
    """
    delimiter = settings.delimiter or ("\t" if ".tsv" in path.rsplit("/", 1)[-1].lower() else ",")
    quoted = delimiter != "\t" if settings.quoting is None else settings.quoting
    return {"delimiter": delimiter, "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, "strict": True}


def is_quoted(dialect: dict[str, Any]) -> bool:
    """Whether quote characters delimit texts in this dialect."""
    return bool(dialect["quoting"] != csv.QUOTE_NONE)


def quoting_hint(settings: CsvSettings, path: str) -> str:
    """A hint for a record with too few or too many columns."""
    if is_quoted(csv_dialect(settings, path)):
        return UNQUOTE
    return QUOTE if settings.quoting is None else ""


def delimiter_hint(header: Sequence[str], wanted: Sequence[str]) -> str:
    """A hint for a first row that lacks a column: another delimiter, if splitting by it gives a wanted column."""
    for delimiter, spelt in DELIMITERS.items():
        if set(wanted) & {name.strip(' "') for cell in header if delimiter in cell for name in cell.split(delimiter)}:
            return f"; its columns seem to be separated by {spelt}: set delimiter to {delimiter!r}"
    return ""


def spelling_hint(columns: Iterable[str], wanted: str) -> str:
    """A hint for a missing column: one that differs from it in blanks, quotes, case or its form in Unicode."""
    form = normalize("NFC", wanted.strip().casefold())
    for name in columns:
        if normalize("NFC", name.strip(' "').casefold()) == form:
            looks_alike = normalize("NFC", name) == normalize("NFC", wanted)  # escapes show the difference
            return f"; did you mean {ascii(name) if looks_alike else repr(name)}?"
    return ""


def csv_hint(path: str) -> str:
    """A hint for a file that is read as JSON Lines but has the name of a CSV file."""
    return "; by its name it is a CSV file, but it is read as JSON Lines" if format_by_name(path) == "csv" else ""


def format_by_name(path: str) -> str | None:
    """The format of a file by its name's ending, ignoring that of compression; None if it is unknown.

    In a web address the query is ignored; elsewhere a question mark may be part of a pattern.
    """
    if path.lower().startswith(("http://", "https://")):
        path = path.partition("#")[0].partition("?")[0]
    endings = reversed(path.rpartition("/")[2].lower().split(".")[1:])
    return next((FORMAT_OF_ENDING[ending] for ending in endings if ending in FORMAT_OF_ENDING), None)


MAX_RECORD = 64 * 2**20
"""The most bytes of one record, which also limits a process's memory for it."""

BOM = b"\xef\xbb\xbf"

RANDOM_ACCESS = frozenset({"parquet"})
"""Formats whose library reads the stored file in random order: it is never decompressed, and compared as a whole."""

CONVERT = "convert it to UTF-8, such as by `iconv -f {0} -t UTF-8`"
SIGNATURES = {
    b"\xff\xfe\0\0": f"is UTF-32, by its byte order mark; {CONVERT.format('UTF-32')}",
    b"\0\0\xfe\xff": f"is UTF-32, by its byte order mark; {CONVERT.format('UTF-32')}",
    b"\xff\xfe": f"is UTF-16, by its byte order mark; {CONVERT.format('UTF-16')}",
    b"\xfe\xff": f"is UTF-16, by its byte order mark; {CONVERT.format('UTF-16')}",
    b"\x1f\x8b": "is compressed by gzip; give it a name that ends in .gz",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; give it a name that ends in .zst",
    b"PK\x03\x04": "is a zip archive (or an office document); unpack it, and use its text in UTF-8",
    b"%PDF": "is a PDF; extract its text, in UTF-8",
    b"PAR1": "is a Parquet file; set the format to parquet",
    b"SQLite format 3": "is an SQLite database; export its text, in UTF-8",
}
"""The first bytes of other kinds of files, with advice; a longer signature comes before its own prefix."""


@dataclass(frozen=True)
class SourceFile:
    """A raw file: `key` is its path below the glob's fixed part; `version` changes whenever its bytes may have changed,
    and is empty if unknown.
    """

    path: str
    key: str
    size: int
    version: str


def open_raw(path: str) -> IO[bytes]:
    """Open a raw file, decompressed if needed."""
    compression = compression_of(path)
    return open_bytes(path) if compression is None else unpack(open_bytes(path), compression)


def unpack(file: IO[bytes], compression: str) -> IO[bytes]:
    """The decompressed content of an open file."""
    if compression == "zstd":
        import pyarrow as pa  # unlike fsspec's reader, it reads every frame and detects a truncated last one

        return io.BufferedReader(pa.input_stream(file, compression=compression))
    if compression == "zip":
        return _Member(file)
    if compression in DECOMPRESSORS:
        return io.BufferedReader(_Streams(file, DECOMPRESSORS[compression]))
    unpacked: Any = compr[compression](file, mode="rb")
    unpacked.myfileobj = file  # which `GzipFile` closes when it is closed
    return cast(IO[bytes], unpacked)


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "lzma": lzma.LZMADecompressor,
}  # fmt: skip


class _Streams(io.RawIOBase):
    """The decompressed content of a file with one or several concatenated streams.

    The standard library's readers treat a later damaged stream as trailing garbage and silently stop there. Raises
    `OSError` or `LZMAError` for invalid data, `EOFError` for a truncated stream.
    """

    def __init__(self, file: IO[bytes], new: Callable[[], Any]) -> None:
        self._file, self._new, self._stream, self._packed = file, new, new(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._stream.eof or self._begins_another():
            if self._stream.needs_input and not self._packed and not self._fill():
                raise EOFError("the compressed data is truncated")
            found = self._stream.decompress(self._packed, len(buffer))
            self._packed = b""
            if found:
                buffer[: len(found)] = found
                return len(found)
        return 0

    def _begins_another(self) -> bool:
        """Whether another stream follows the one that has ended; zeros between them are padding."""
        self._packed = self._stream.unused_data.lstrip(b"\0")
        while not self._packed and self._fill():
            self._packed = self._packed.lstrip(b"\0")
        self._stream = self._new() if self._packed else self._stream
        return bool(self._packed)

    def _fill(self) -> bool:
        self._packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
        return bool(self._packed)

    def close(self) -> None:
        super().close()
        self._file.close()


class _Member(io.BufferedReader):
    """The only file in a zip archive; closing it closes the archive's file. Raises `CorpusError` if there is not
    exactly one, because fsspec would read only one of several.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        try:
            super().__init__(cast(io.RawIOBase, _only_member(file)))
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        super().close()
        self._file.close()


def _only_member(file: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(file)
    names = [each.filename for each in archive.infolist() if not each.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]  # macOS metadata
    if len(names) != 1:
        content = f"{len(names)} files ({some(names)})" if names else "no file"
        raise CorpusError(f"{getattr(file, 'name', 'the archive')} holds {content}; expected one in a .zip: unpack it")
    try:
        return archive.open(names[0])
    except RuntimeError as error:  # encrypted, or compressed by a method that Python does not support
        raise CorpusError(f"{getattr(file, 'name', 'the archive')} cannot be read: {error}; unpack it") from error


def open_bytes(path: str) -> IO[bytes]:
    """Open a file without decompressing. Local files are opened directly: fsspec would take most of the time."""
    if "://" not in path:
        return open(path, "rb")
    # fsspec's own files have no readline with a size limit.
    return io.BufferedReader(cast(io.RawIOBase, _of_whole_answers(fsspec.open(path, "rb").open())), 2**20)


def _of_whole_answers(file: Any) -> Any:
    """A remote file that raises `OSError` for an answer of another length than requested. fsspec would take it for the
    file's bytes, also the text of an error or an empty answer.
    """
    cache: Any = getattr(file, "cache", None)
    if (fetch := getattr(cache, "fetcher", None)) is not None:

        def fetch_whole(start: int, end: int) -> bytes:
            found: bytes = fetch(start, end)
            if len(found) != end - start:
                raise OSError(errno.EREMOTEIO, f"{end - start} bytes from {start} were requested, {len(found)} arrived")
            return found

        cache.fetcher = fetch_whole
    return file


def open_as(form: str, path: str) -> IO[bytes]:
    """Open a file of a format: decompressed, unless the format is read in random order."""
    return (open_bytes if form in RANDOM_ACCESS else open_raw)(path)


def not_text(path: str) -> str | None:
    """A description of a file that is not UTF-8 text, with advice; None if its kind is unknown."""
    with open_raw(path) as file:
        head = file.read(max(map(len, SIGNATURES)))
    return next((known for signature, known in SIGNATURES.items() if head.startswith(signature)), None)


TAR_MARK, TAR_MARK_AT = b"ustar", 257
"""The mark in the header of each file in a tar archive, and its offset."""


def is_tar(path: str) -> bool:
    """Whether a file, decompressed, is a tar archive, which may look like text if its files are large."""
    with reading(path), open_raw(path) as file:
        return file.read(TAR_MARK_AT + len(TAR_MARK))[TAR_MARK_AT:] == TAR_MARK


def compression_of(path: str) -> str | None:
    """The compression of a file, by its name; None if it has none."""
    found: str | None = get_compression(path, "infer")
    return found


DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""Exceptions of files that cannot be read or decompressed."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert the errors of a raw file that cannot be opened or is damaged, and of its server, to `CorpusError`."""
    try:
        with credentials_explained():
            yield
    except PipelineError:
        raise
    except Exception as error:
        if isinstance(error, DAMAGED) or is_transient(error) or is_of_remote(error):
            raise unreadable(path, error) from error
        raise


def unreadable(path: str, error: Exception) -> CorpusError:
    """The error for a raw file that cannot be opened or is damaged."""
    remedy = remedy_of_s3(error, "list and read") if path.startswith(("s3://", "s3a://")) else None
    remedy = remedy or "check that the file exists, is complete and readable"
    return CorpusError(f"{path} cannot be read: {reason_of(error)}; {remedy}", is_transient(error))


def csv_header(path: str, settings: CsvSettings) -> tuple[list[str], int]:
    """The names in a CSV file's first row that is not blank, empty if it is not CSV, and the bytes up to the row's end
    (decompressed).
    """
    taken = 0

    def lines(file: IO[bytes]) -> Iterator[str]:
        nonlocal taken
        while line := file.readline(MAX_RECORD):
            text = line.removeprefix(BOM) if taken == 0 else line
            taken += len(line)
            yield text.decode(errors="replace")

    with open_raw(path) as file:
        try:
            names = next(filter(None, csv.reader(lines(file), **csv_dialect(settings, path))), [])
        except csv.Error:
            names = []
    return names, taken


def digest_range(path: str, start: int, end: int) -> str:
    """The SHA-256 of the bytes `[start, end)` of a file, or up to the file's end."""
    with open_bytes(path) as file:
        file.seek(start)
        return digest_stream(file, end - start)


SAMPLED_FILES = 8
SAMPLED_BYTES = 4 * 2**20
"""Decompressed bytes read from the beginning of each sampled file."""


def unpacked_bytes(corpus: CorpusConfig, sources: Sequence[SourceFile]) -> int:
    """The bytes of a corpus's files: for compressed files an estimate of the decompressed size, for Parquet the size of
    the text column.

    The largest compressed files are sampled; for the others the median ratio of these is assumed. Raises `CorpusError`
    for a damaged file among those sampled.
    """
    packed = [
        source for source in sources if source.size and (compression_of(source.path) or corpus.format in RANDOM_ACCESS)
    ]
    plain = sum(source.size for source in sources) - sum(source.size for source in packed)
    if not packed:
        return plain
    largest = sorted(packed, key=lambda source: (-source.size, source.key))
    ratios = [_ratio(corpus, source) for source in largest[:SAMPLED_FILES]]
    looked_at = sum(source.size * ratio for source, ratio in zip(largest, ratios, strict=False))
    return plain + round(looked_at + median(ratios) * sum(source.size for source in largest[SAMPLED_FILES:]))


def _ratio(corpus: CorpusConfig, source: SourceFile) -> float:
    """Decompressed bytes per stored byte, from the beginning of a file."""
    with reading(source.path):
        if corpus.format in RANDOM_ACCESS:
            return _column_bytes(source, corpus.text_field) / source.size
        with open_bytes(source.path) as file, unpack(file, compression_of(source.path) or "") as text:
            unpacked = len(text.read(SAMPLED_BYTES))
            return unpacked / (source.size if unpacked < SAMPLED_BYTES else min(source.size, file.tell()))


def _column_bytes(source: SourceFile, column: str) -> int:
    """The size of a column from a Parquet file's metadata; without the column, which the reader refuses, the whole
    file's size.
    """
    groups = parquet_groups(source.path)
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    of_text = [each.total_uncompressed_size for each in columns if each.path_in_schema == column]
    return sum(of_text) or source.size


def parquet_groups(path: str) -> list[Any]:
    """The metadata of a Parquet file's row groups. Raises `CorpusError` for another kind of file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_bytes(path) as file:
            metadata = pq.ParquetFile(file).metadata
    except pa.ArrowInvalid as error:
        raise CorpusError(f"{path} is not a Parquet file: {error}") from error
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]
