"""Readers: a piece of a raw file in, its documents out, as UTF-8 bytes that were checked.

A new format is one function and one entry in `READERS`. Memory is bounded: records stream, and one record takes at most
`MAX_RECORD` bytes.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from trainer.common.errors import RecordError
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.data.csv_files import QuoteWatch, csv_dialect, csv_hint, delimiter_hint, never_ends, quoting_hint
from trainer.data.pieces import Cuts, Piece, boundary
from trainer.data.raw_bytes import open_piece
from trainer.data.raw_files import (
    BOM,
    MAX_RECORD,
    csv_header,
    is_compressed,
    not_text,
    open_bytes,
    open_raw,
    reading,
    unreadable,
)

csv.field_size_limit(MAX_RECORD)

NAMED_BY = "; text_field says which one holds the text"


PART_BYTES = 4 * 2**20
"""About how much of a document of any size is read, and tokenized, at once."""

MOST_ROWS = 256
"""Of a Parquet file, read at once."""


class Document(NamedTuple):
    """A document, or a part of one that is too large; `ends` says whether this is its last part.

    `columns` are numbers that its record has beside the text, of those that were asked for.
    """

    text: bytes
    ends: bool
    columns: Mapping[str, float] = MappingProxyType({})


OnBad = Callable[[RecordError], None]
"""Called with each bad record: raises, or returns to skip it."""

Columns = Sequence[str]
"""What is read beside the text, where a format has more than text."""


def ignore(error: RecordError) -> None:
    """Pass over a bad record: the tokenization proper reports it."""


def refuse(error: RecordError) -> None:
    """Raise the error of a bad record."""
    raise error


def read_documents(
    piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns = (), with_empty: bool = False
) -> Iterator[Document]:
    """The documents of a piece, in the file's order; empty ones are left out, unless `with_empty`. Of records, numbers
    in `columns` are read too.

    Raises `CorpusError` for a damaged file, and `ChangedFile`, after the last document, if the bytes that were read are
    not those that the piece stands for.
    """
    with reading(piece.path), open_piece(piece, corpus) as file:
        for document in READERS[corpus.format](file, piece, corpus, on_bad, columns):
            check_stop()
            if document.text or with_empty:
                yield document


def read_head(path: str, corpus: CorpusConfig, on_bad: OnBad) -> Iterator[Document]:
    """The documents of a file from its beginning on, of which no digest is known, for a reader that gives up early.

    Raises as `read_documents` does, but for `ChangedFile`.
    """
    whole = Piece(path, path, 0, 0, sys.maxsize, 0, last=True, sha256="", file_bytes=0)
    with reading(path), (open_bytes if corpus.format == "parquet" else open_raw)(path) as file:
        yield from READERS[corpus.format](file, whole, corpus, on_bad, ())


def read_text(
    file: IO[bytes], piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    """One document a file, or one between two separator lines."""
    if corpus.separator is not None:
        yield from _separated(file, piece, corpus.separator.encode(), on_bad)
        return
    for part, offset, final in _parts(file, piece, boundary(corpus)):
        if _check_utf8(part, piece, offset, on_bad):
            yield Document(part, ends=final and piece.last)


def read_source(
    file: IO[bytes], piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    """Source code: one document a file, with line ends normalised to a newline."""
    for document in read_text(file, piece, corpus, on_bad, columns):
        yield document._replace(text=document.text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def read_lines(
    file: IO[bytes], piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    """One document a line."""
    for line, offset in _lines(file, piece):
        text = line.rstrip(b"\r\n")
        if _check_utf8(text, piece, offset, on_bad):
            yield Document(text, ends=True)


def read_jsonl(
    file: IO[bytes], piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    """One JSON object a line, its text in one field. Blank lines are passed over."""
    for line, offset in _lines(file, piece):
        if not line.strip():
            continue
        if not _check_utf8(line, piece, offset, on_bad):
            continue
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            on_bad(_bad(piece, _line_number(piece, offset), f"not valid JSON: {error}{csv_hint(piece.path)}"))
        else:
            yield from _field(
                record, corpus.text_field, piece, partial(_line_number, piece, offset), on_bad, columns=columns
            )


def read_csv(
    file: IO[bytes], piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    """One record a row, its text in one column, which the file's first row names."""
    dialect, hint = csv_dialect(corpus, piece.path), quoting_hint(corpus, piece.path)
    rows, watch = _rows(file, piece, dialect, hint), QuoteWatch(corpus, piece.path)
    if piece.start == 0:
        header, _, _, wrong = next(rows, ([], 0, 0, None))
        if wrong is not None:
            raise wrong
    else:
        header, _ = csv_header(piece.path, corpus)
    if corpus.text_field not in header:
        found = f"its first line names {', '.join(header) or 'none'}"
        hint = delimiter_hint(header, [corpus.text_field]) or NAMED_BY
        raise RecordError(f"{piece.path}: no column {corpus.text_field!r}; {found}{hint}")
    column = header.index(corpus.text_field)
    for row, begin, end, wrong in rows:
        if wrong is None and row and len(row) != len(header):
            wrong = _bad(
                piece, _line_number(piece, end), f"{len(row)} columns, the first line names {len(header)}{hint}"
            )
        if wrong is not None:
            on_bad(wrong)
        elif row:
            watch.add([row[column]], begin < end, partial(_place, piece, begin))
            beside = {name: row[header.index(name)] for name in columns if name in header}
            yield Document(row[column].encode(), ends=True, columns=_numbers(beside, columns))
    watch.warn()


def read_parquet(
    file: IO[bytes], piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    """One record a row, its text in one column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    field = corpus.text_field
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        if field not in names:
            raise RecordError(f"{piece.path}: no column {field!r}; it has {', '.join(names)}{NAMED_BY}")
        row = sum(table.metadata.row_group(group).num_rows for group in range(piece.start))
        groups = list(range(piece.start, min(piece.end, table.metadata.num_row_groups)))
        wanted = [field, *(name for name in columns if name in names and name != field)]
        for batch in table.iter_batches(batch_size=_rows_at_once(table, groups), row_groups=groups, columns=wanted):
            for record in (batch.slice(at, 1).to_pylist()[0] for at in range(batch.num_rows)):
                yield from _field(record, field, piece, partial(int, row), on_bad, "row", columns)
                row += 1
    except pa.ArrowInvalid as error:
        raise unreadable(piece.path, error) from error


def _rows_at_once(table: Any, groups: Sequence[int]) -> int:
    """So many rows of a Parquet file that they take about `PART_BYTES` where they are largest."""
    found = (table.metadata.row_group(group) for group in groups)
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in found), default=0)
    return max(1, min(MOST_ROWS, PART_BYTES // max(largest, 1)))


READERS: dict[str, Callable[[IO[bytes], Piece, CorpusConfig, OnBad, Columns], Iterator[Document]]] = {
    "text": read_text,
    "source": read_source,
    "lines": read_lines,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
}


def _parts(file: IO[bytes], piece: Piece, cuts: Cuts) -> Iterator[tuple[bytes, int, bool]]:
    """A text in parts of a few MiB that end where it may be cut; with each, its offset and whether it is the last."""
    left = None if is_compressed(piece.path) else piece.end - piece.start
    held, offset = b"", piece.start
    while True:
        block = file.read(PART_BYTES if left is None else min(PART_BYTES, left))
        if left is not None:
            left -= len(block)
        if offset == 0 and not held:
            bom = len(BOM) if block.startswith(BOM) else 0
            block, offset = block[bom:], bom
        if not block:
            yield held, offset, True
            return
        held += block
        if len(held) > MAX_RECORD:
            raise RecordError(
                f"{piece.path}: no line end within {MAX_RECORD >> 20} MiB after byte {offset}; is this text?"
            )
        more_to_come = left > 0 if left is not None else len(block) == PART_BYTES
        if more_to_come and (at := max(cuts(held, max(0, len(held) - 65536)), default=None)) is not None:
            yield held[:at], offset, False
            held, offset = held[at:], offset + at


def _lines(file: IO[bytes], piece: Piece) -> Iterator[tuple[bytes, int]]:
    """The lines that begin in the piece, each with its byte offset (in the unpacked file)."""
    offset = piece.start
    while line := file.readline(MAX_RECORD + 1):
        if len(line) > MAX_RECORD:
            raise _bad(
                piece, _line_number(piece, offset), f"longer than {MAX_RECORD >> 20} MiB; is this the right format?"
            )
        skip = len(BOM) if offset == 0 and line.startswith(BOM) else 0
        yield line[skip:], offset + skip
        offset += len(line)


def _rows(
    file: IO[bytes], piece: Piece, dialect: dict[str, Any], hint: str
) -> Iterator[tuple[list[str], int, int, RecordError | None]]:
    """The rows that begin in the piece, each with the byte offsets of its first and last line, and what is wrong with
    it.

    Raises `RecordError` for a quote that never ends.
    """
    offsets: list[int] = []
    wrong: RecordError | None = None

    def wrong_bytes(error: RecordError) -> None:
        nonlocal wrong
        wrong = wrong or error

    def decoded() -> Iterator[str]:
        for line, offset in _lines(file, piece):
            offsets[1:] = [offset]  # the first line's, and the last one's
            _check_utf8(line, piece, offset, wrong_bytes)
            yield line.decode(errors="replace")

    rows = csv.reader(decoded(), **dialect)
    while True:
        row: list[str] = []
        offsets.clear()
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"not valid CSV: {error}{hint}"
            if never_ends(error):
                raise _bad(piece, _line_number(piece, offsets[0]), problem) from error
            wrong = wrong or _bad(piece, _line_number(piece, offsets[-1]), problem)
        yield row, offsets[0], offsets[-1], wrong
        wrong = None


def _separated(file: IO[bytes], piece: Piece, separator: bytes, on_bad: OnBad) -> Iterator[Document]:
    lines: list[bytes] = []
    begin = size = 0

    def gathered() -> Iterator[Document]:
        text = b"".join(lines).removesuffix(b"\n").removesuffix(b"\r")
        if _check_utf8(text, piece, begin, on_bad):
            yield Document(text, ends=True)

    for line, offset in _lines(file, piece):
        if line.rstrip(b"\r\n") == separator:
            yield from gathered()
            lines, size = [], 0
        else:
            begin = begin if lines else offset
            lines.append(line)
            size += len(line)
            if size > MAX_RECORD:
                raise _bad(
                    piece, _line_number(piece, begin), f"no separator line {separator!r} within {MAX_RECORD >> 20} MiB"
                )
    yield from gathered()


def _field(
    record: Any,
    field: str,
    piece: Piece,
    number: Callable[[], int],
    on_bad: OnBad,
    unit: str = "line",
    columns: Columns = (),
) -> Iterator[Document]:
    if not isinstance(record, dict):
        problem = f"a JSON object was expected, found {type(record).__name__}"
    elif field not in record:
        problem = f"no field {field!r}; it has {', '.join(map(str, record)) or 'none'}{NAMED_BY}"
    elif not isinstance(record[field], str):
        problem = f"field {field!r} holds {type(record[field]).__name__}, not text"
    else:
        try:
            yield Document(record[field].encode(), ends=True, columns=_numbers(record, columns))
            return
        except UnicodeEncodeError as error:
            problem = f"field {field!r} holds half of a surrogate pair at character {error.start}"
    on_bad(_bad(piece, number(), problem, unit))


def _numbers(record: Mapping[str, Any], columns: Columns) -> dict[str, float]:
    """The numbers in some columns of a record; what is none is left out."""
    found = {}
    for name in columns:
        with suppress(TypeError, ValueError, OverflowError):
            found[name] = float(record.get(name))  # type: ignore[arg-type]
    return found


def _check_utf8(text: bytes, piece: Piece, offset: int, on_bad: OnBad) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        on_bad(_not_utf8(piece, offset + error.start, error))
        return False
    return True


def _not_utf8(piece: Piece, offset: int, error: UnicodeDecodeError) -> RecordError:
    found = error.object[error.start]
    if (known := not_text(piece.path)) is not None:
        return RecordError(f"{piece.path} {known}")
    return RecordError(
        f"{piece.path}: byte {offset} (0x{found:02x}) is not valid UTF-8 ({error.reason}); convert it to UTF-8"
    )


def _place(piece: Piece, offset: int) -> str:
    return f"{piece.path}: line {_line_number(piece, offset)}"


def _bad(piece: Piece, number: int, problem: str, unit: str = "line") -> RecordError:
    return RecordError(f"{piece.path}: {unit} {number}: {problem}")


def _line_number(piece: Piece, offset: int) -> int:
    """The number, from 1, of the line that begins at a byte offset; read again, as only errors ask for it."""
    number = 1
    with open_raw(piece.path) as file:
        while offset > 0 and (block := file.read(min(2**20, offset))):
            number += block.count(b"\n")
            offset -= len(block)
    return number
