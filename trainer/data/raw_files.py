"""Raw files: opening them, packed or not, here or on a server; their size, and what is said of bad ones."""

import bz2
import csv
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import IO, Any, Protocol, cast

import fsspec
from fsspec.compression import compr
from fsspec.core import get_compression

from trainer.common.errors import CorpusError, PipelineError, reason_of
from trainer.common.transient import is_transient
from trainer.config.corpora import CorpusConfig
from trainer.store.checked_files import digest_stream

FORMAT_OF_ENDING = {"csv": "csv", "tsv": "csv", "jsonl": "jsonl", "json": "jsonl", "parquet": "parquet"}
"""How files are read, by how their names end."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What usually divides columns."""

QUOTE = "; if quote characters quote here, set quoting to true"
UNQUOTE = "; if quote characters are text here, set quoting to false"


class CsvSettings(Protocol):
    """What says how csv files are read: a corpus, or a labelled data set."""

    @property
    def delimiter(self) -> str | None: ...

    @property
    def quoting(self) -> bool | None: ...


def csv_dialect(settings: CsvSettings, path: str) -> dict[str, Any]:
    """How a file is read, as options of `csv.reader`: delimiter and quoting as given, else by the file's name.

    Files with tabs between columns are not quoted unless it is said, as a quote there is a text's own. Quoted ones are
    read strictly, because a stray quote would otherwise make one text out of many records and say nothing.
    """
    delimiter = settings.delimiter or ("\t" if ".tsv" in path.rsplit("/", 1)[-1].lower() else ",")
    quoted = delimiter != "\t" if settings.quoting is None else settings.quoting
    return {"delimiter": delimiter, "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, "strict": True}


def is_quoted(dialect: dict[str, Any]) -> bool:
    """Whether quote characters quote in this dialect."""
    return bool(dialect["quoting"] != csv.QUOTE_NONE)


def quoting_hint(settings: CsvSettings, path: str) -> str:
    """What to try if a record has too few or too many columns."""
    if is_quoted(csv_dialect(settings, path)):
        return UNQUOTE
    return QUOTE if settings.quoting is None else ""


def delimiter_hint(header: Sequence[str], wanted: Sequence[str]) -> str:
    """What to try if a first row lacks a column: another delimiter, if one divides it into columns of which some are
    wanted.
    """
    for delimiter, spelt in DELIMITERS.items():
        if set(wanted) & {name.strip(' "') for cell in header if delimiter in cell for name in cell.split(delimiter)}:
            return f"; its columns seem to be divided by {spelt}: set delimiter to {delimiter!r}"
    return ""


def csv_hint(path: str) -> str:
    """What to say of a file that is read as JSON Lines and is named as CSV files are."""
    return "; by its name it is a CSV file, but it is read as JSON Lines" if format_by_name(path) == "csv" else ""


def format_by_name(path: str) -> str | None:
    """How a file is read, by how its name ends, before the ending of a packed one; None if that tells nothing.

    A web address's query is no part of the name; elsewhere a question mark may be one of a pattern.
    """
    if path.lower().startswith(("http://", "https://")):
        path = path.partition("#")[0].partition("?")[0]
    endings = reversed(path.rpartition("/")[2].lower().split(".")[1:])
    return next((FORMAT_OF_ENDING[ending] for ending in endings if ending in FORMAT_OF_ENDING), None)


MAX_RECORD = 64 * 2**20
"""Bytes that one record, and so a process's memory for it, may take."""

BOM = b"\xef\xbb\xbf"

READ_HERE_AND_THERE = frozenset({"parquet"})
"""Formats whose library reads here and there in a file as it lies: it is never unpacked, and compared as a whole."""

CONVERT = "convert it to UTF-8, such as by `iconv -f {0} -t UTF-8`"
SIGNATURES = {
    b"\xff\xfe\0\0": f"is UTF-32, by its byte order mark; {CONVERT.format('UTF-32')}",
    b"\0\0\xfe\xff": f"is UTF-32, by its byte order mark; {CONVERT.format('UTF-32')}",
    b"\xff\xfe": f"is UTF-16, by its byte order mark; {CONVERT.format('UTF-16')}",
    b"\xfe\xff": f"is UTF-16, by its byte order mark; {CONVERT.format('UTF-16')}",
    b"\x1f\x8b": "is packed by gzip; give it a name that ends in .gz",
    b"\x28\xb5\x2f\xfd": "is packed by zstd; give it a name that ends in .zst",
    b"PK\x03\x04": "is a zip archive (or an office document); unpack it, and give its text in UTF-8",
    b"%PDF": "is a PDF; extract its text, in UTF-8",
    b"PAR1": "is a Parquet file; set the format to parquet",
    b"SQLite format 3": "is an SQLite database; export its text, in UTF-8",
}
"""What files of other kinds begin with, and what to do about them; a longer beginning comes before one that it begins
with.
"""


@dataclass(frozen=True)
class SourceFile:
    """A raw file: `key` is its path below the glob's fixed part, `version` changes whenever its bytes may have (if
    known).
    """

    path: str
    key: str
    size: int
    version: str


def open_raw(path: str) -> IO[bytes]:
    """Open a raw file; what is packed is unpacked."""
    compression = compression_of(path)
    if compression in ("zip", "zstd", *DECOMPRESSORS):
        return unpack(open_bytes(path), compression)
    if compression is not None:
        unpacked: IO[bytes] = fsspec.open(path, "rb", compression=compression).open()
        return unpacked
    return open_bytes(path)


def unpack(file: IO[bytes], compression: str) -> IO[bytes]:
    """What is packed in an open file."""
    if compression == "zstd":
        import pyarrow as pa  # unlike fsspec's reader, reads every frame, and sees when the last one is cut short

        return io.BufferedReader(pa.input_stream(file, compression=compression))
    if compression == "zip":
        return _Member(file)
    if compression in DECOMPRESSORS:
        return io.BufferedReader(_Streams(file, DECOMPRESSORS[compression]))
    unpacked: IO[bytes] = compr[compression](file, mode="rb")
    return unpacked


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "lzma": lzma.LZMADecompressor,
}  # fmt: skip


class _Streams(io.RawIOBase):
    """What is packed in a file of one stream or of several, one after another.

    The standard library's readers take a later stream that is damaged for rubbish, and end there without a word. Raises
    `OSError` or `LZMAError` for what is no stream, `EOFError` where one is cut short.
    """

    def __init__(self, file: IO[bytes], new: Callable[[], Any]) -> None:
        self._file, self._new, self._stream, self._packed = file, new, new(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._stream.eof or self._begins_another():
            if self._stream.needs_input and not self._packed and not self._fill():
                raise EOFError("the file ends before what is packed in it does")
            found = self._stream.decompress(self._packed, len(buffer))
            self._packed = b""
            if found:
                buffer[: len(found)] = found
                return len(found)
        return 0

    def _begins_another(self) -> bool:
        """Whether another stream follows the one that has ended; zeros between them fill up blocks."""
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
    """The file that a zip archive holds, which closes the archive's with it. Raises `CorpusError` if it holds none, or
    several, of which fsspec would read one.
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
    names = [name for name in names if not name.startswith("__MACOSX/")]  # of a Mac's own notes
    if len(names) != 1:
        told = f"{len(names)} files ({', '.join(names[:3])}{', …' * (len(names) > 3)})" if names else "no file"
        raise CorpusError(f"{getattr(file, 'name', 'the archive')} holds {told}; expected is one in a .zip: unpack it")
    try:
        return archive.open(names[0])
    except RuntimeError as error:  # it is encrypted, or packed in a way that Python does not know
        raise CorpusError(f"{getattr(file, 'name', 'the archive')} cannot be read: {error}; unpack it") from error


def open_bytes(path: str) -> IO[bytes]:
    """Open a file as it is. Local ones directly: among many small files, fsspec's own work would be the most of it."""
    if "://" not in path:
        return open(path, "rb")
    # fsspec's own files have no readline with a limit.
    return io.BufferedReader(cast(io.RawIOBase, fsspec.open(path, "rb").open()), 2**20)


def open_as(form: str, path: str) -> IO[bytes]:
    """Open a file of a format: unpacked, unless the format is read here and there."""
    return (open_bytes if form in READ_HERE_AND_THERE else open_raw)(path)


def not_text(path: str) -> str | None:
    """What kind of file it is that turned out not to hold text in UTF-8, and what to do; None if that cannot be
    told.
    """
    with open_raw(path) as file:
        head = file.read(max(map(len, SIGNATURES)))
    return next((known for signature, known in SIGNATURES.items() if head.startswith(signature)), None)


TAR_MARK, TAR_MARK_AT = b"ustar", 257
"""What a tar archive has in the head of each of its files, and where."""


def is_tar(path: str) -> bool:
    """Whether a file, unpacked, is a tar archive, which passes for text where its files are large."""
    with reading(path), open_raw(path) as file:
        return file.read(TAR_MARK_AT + len(TAR_MARK))[TAR_MARK_AT:] == TAR_MARK


def compression_of(path: str) -> str | None:
    """How a file is packed, by its name; None if it is not."""
    found: str | None = get_compression(path, "infer")
    return found


DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""What is raised by files that cannot be read or unpacked."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Say of a raw file that cannot be opened, is damaged, or is on a server that is away, which it is: a
    `CorpusError`.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if isinstance(error, DAMAGED) or is_transient(error):
            raise unreadable(path, error) from error
        raise


def unreadable(path: str, error: Exception) -> CorpusError:
    """The error for a raw file that cannot be opened or is damaged."""
    message = f"{path} cannot be read: {reason_of(error)}; check that the file is there, whole, and yours to read"
    return CorpusError(message, is_transient(error))


def csv_header(path: str, settings: CsvSettings) -> tuple[list[str], int]:
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
            names = next(csv.reader(lines(file), **csv_dialect(settings, path)), [])
        except csv.Error:
            names = []
    return names, taken


def digest_stretch(path: str, start: int, end: int) -> str:
    """The SHA-256 of the bytes `[start, end)` of a file, or of as many of them as there are."""
    with open_bytes(path) as file:
        file.seek(start)
        return digest_stream(file, end - start)


SAMPLED_FILES = 8
SAMPLED_BYTES = 4 * 2**20
"""Unpacked bytes of each sampled file, from its beginning."""


def unpacked_bytes(corpus: CorpusConfig, sources: Sequence[SourceFile]) -> int:
    """The bytes of a corpus's files, of compressed ones as many as they probably hold; of Parquet, those of the text's
    column.

    The largest of the compressed files are looked at; of the others it is taken that they are packed as much as the
    middle one of these. Raises `CorpusError` for one that is looked at and damaged.
    """
    packed = [
        source for source in sources if source.size and (compression_of(source.path) or corpus.format == "parquet")
    ]
    plain = sum(source.size for source in sources if source not in packed)
    if not packed:
        return plain
    largest = sorted(packed, key=lambda source: (-source.size, source.key))
    ratios = [_ratio(corpus, source) for source in largest[:SAMPLED_FILES]]
    looked_at = sum(source.size * ratio for source, ratio in zip(largest, ratios, strict=False))
    return plain + round(looked_at + median(ratios) * sum(source.size for source in largest[SAMPLED_FILES:]))


def _ratio(corpus: CorpusConfig, source: SourceFile) -> float:
    """How many bytes a packed one holds, by the beginning of a file."""
    with reading(source.path):
        if corpus.format == "parquet":
            return _column_bytes(source, corpus.text_field) / source.size
        with open_bytes(source.path) as file, unpack(file, compression_of(source.path) or "") as text:
            held = len(text.read(SAMPLED_BYTES))
            return held / (source.size if held < SAMPLED_BYTES else min(source.size, file.tell()))


def _column_bytes(source: SourceFile, column: str) -> int:
    """What a column takes by a Parquet file's own account; of a missing one, which its reader refuses, all that there
    is.
    """
    groups = parquet_groups(source.path)
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    of_text = [each.total_uncompressed_size for each in columns if each.path_in_schema == column]
    return sum(of_text) or source.size


def parquet_groups(path: str) -> list[Any]:
    """What a Parquet file says of its row groups. Raises `CorpusError` if it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_bytes(path) as file:
            metadata = pq.ParquetFile(file).metadata
    except pa.ArrowInvalid as error:
        raise CorpusError(f"{path} is not a Parquet file: {error}") from error
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]
