"""Files to records: what a file of each format holds, where each record stands in it, and what is wrong with bad ones.

Corpora, labelled data, conversations, evaluation sets and new texts are all read by this, and say what a record means.
A new format is one function and one line of `FORMATS`. Memory is bounded: records stream, and one takes at most
`MAX_RECORD` bytes.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from trainer.common.errors import RecordError
from trainer.data.csv_files import csv_dialect, csv_hint, never_ends, quoting_hint
from trainer.data.pieces import text_cuts
from trainer.data.raw_files import BOM, MAX_RECORD, csv_header, is_compressed, not_text, open_raw, unreadable

if TYPE_CHECKING:
    from datasets import Dataset

csv.field_size_limit(MAX_RECORD)

PART_BYTES = 4 * 2**20
"""About how much of a document of any size is read, and tokenized, at once."""

MOST_ROWS = 256
"""Of a Parquet file or a data set, read at once."""

FIRST_LINE = "the first line"


class Span(NamedTuple):
    """What is read of a raw file: its bytes `[start, end)`, of Parquet its row groups; `name` is what messages call it.

    `last` is whether nothing of the file comes after it.
    """

    name: str
    path: str
    start: int = 0
    end: int = sys.maxsize
    last: bool = True


class Reading(NamedTuple):
    """How the records of a file are found, whatever they mean.

    `all_text`: of csv, a record is bad if any of its bytes is no UTF-8; else its values hold these as surrogates.
    `name_columns` tells the names of a csv file's columns, and what names them, by the file's name and its first row:
    where that is not `FIRST_LINE`, the row is a record.
    """

    format: str
    delimiter: str | None = None
    quoting: bool | None = None
    separator: str | None = None
    all_text: bool = False
    name_columns: Callable[[str, list[str]], tuple[list[str], str]] = lambda name, row: (row, FIRST_LINE)


class Record(NamedTuple):
    """A record: what names its place, and its values by column, or what is `wrong` with it.

    The text of formats without columns is in UTF-8, and checked. `spans`: whether the record goes on over line ends, in
    a file of lines; `ends`: whether it ends here, or is a part of a document that is too large to be read at once.
    """

    place: Callable[[], str]
    values: Mapping[str, Any]
    wrong: RecordError | None = None
    spans: bool = False
    ends: bool = True


class Table(NamedTuple):
    """A file that is open: its columns (None: each record has its own), and how to read the wanted ones, once.

    Columns that are not there are passed over. A format without columns gives its text by the first name that is
    wanted. `features` are what a data set says of its columns.
    """

    columns: list[str] | None
    records: Callable[[Sequence[str]], Iterator[Record]]
    features: Callable[[], Mapping[str, Any]] = dict


def open_text(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record a file, or one between two separator lines."""

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        if reading.separator is not None:
            yield from _separated(file, span, reading.separator.encode(), wanted)
            return
        for part, offset, final in _parts(file, span):
            yield _text(lambda: span.name, part, span, offset, wanted)._replace(ends=final and span.last)

    return Table(None, records)


def open_source(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """Source code: one record a file, with line ends normalised to a newline."""
    table = open_text(file, span, reading)

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        for record in table.records(wanted):
            texts = {n: text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for n, text in record.values.items()}
            yield record._replace(values=texts)

    return table._replace(records=records)


def open_lines(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record a line."""

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        for place, line, offset in _lines(file, span):
            yield _text(place, line.rstrip(b"\r\n"), span, offset, wanted)

    return Table(None, records)


def open_jsonl(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One JSON object a line, all of whose fields are read. Blank lines are passed over."""

    def read(place: Callable[[], str], line: bytes, offset: int) -> Record:
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return Record(place, {}, _not_utf8(span, offset, error))
        except (ValueError, RecursionError) as error:
            return Record(place, {}, RecordError(f"{place()}: not valid JSON: {error}{csv_hint(span.name)}"))
        if not isinstance(record, dict):
            problem = f"a JSON object was expected, found {type(record).__name__}"
            return Record(place, {}, RecordError(f"{place()}: {problem}"))
        return Record(place, record)

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        return (read(*line) for line in _lines(file, span) if line[1].strip())

    return Table(None, records)


def open_csv(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record a row; columns are named by the file's first row, or as the reading says."""
    hint = quoting_hint(reading, span.name)
    rows = _rows(file, span, csv_dialect(reading, span.name), hint)
    header, named_by = list[str](), FIRST_LINE
    if span.start > 0:
        header, _ = csv_header(span.path, reading)
    elif first := next(rows, None):
        if (wrong := first.wrong or first.undecoded) is not None:
            raise wrong
        header, named_by = reading.name_columns(span.name, first.cells)
        rows = rows if named_by == FIRST_LINE else chain([first], rows)

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        places = {name: header.index(name) for name in wanted if name in header}
        for row in rows:
            wrong = row.wrong or (row.undecoded if reading.all_text else None)
            if wrong is None and row.cells and len(row.cells) != len(header):
                problem = f"{len(row.cells)} columns, {named_by} names {len(header)}{hint}"
                wrong = RecordError(f"{row.place()}: {problem}")
            if wrong is not None:
                yield Record(row.place, {}, wrong)
            elif row.cells:
                values = {name: row.cells[column] for name, column in places.items()}
                yield Record(row.place, values, spans=row.lines > 1)

    return Table(header, records)


def open_parquet(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record a row."""
    import pyarrow.parquet as pq

    with _explained(span.name):
        table = pq.ParquetFile(file)
        schema = table.schema_arrow

    def features() -> Mapping[str, Any]:
        from datasets import Features

        described = b"huggingface" in (schema.metadata or {})
        return dict(Features.from_arrow_schema(schema)) if described else {}

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        with _explained(span.name):
            groups = list(range(span.start, min(span.end, table.metadata.num_row_groups)))
            number = sum(table.metadata.row_group(group).num_rows for group in range(span.start))
            columns = list(dict.fromkeys(name for name in wanted if name in schema.names))
            for batch in table.iter_batches(_rows_at_once(table, groups), row_groups=groups, columns=columns):
                for at in range(batch.num_rows):
                    yield Record(partial(_row_of, span.name, number), batch.slice(at, 1).to_pylist()[0])
                    number += 1

    return Table(list(schema.names), records, features)


def open_loaded(name: str, loaded: "Dataset") -> Table:
    """A split of a data set that the `datasets` library has loaded: one record a row."""

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        number, columns = 0, [column for column in wanted if column in loaded.column_names]
        with _explained(name):
            for block in loaded.select_columns(columns).with_format(None).iter(batch_size=MOST_ROWS):
                for values in zip(*(block[column] for column in columns), strict=True):
                    yield Record(partial(_row_of, name, number), dict(zip(columns, values, strict=True)))
                    number += 1

    return Table(list(loaded.column_names), records, lambda: dict(loaded.features))


FORMATS: dict[str, Callable[[IO[bytes], Span, Reading], Table]] = {
    "text": open_text,
    "source": open_source,
    "lines": open_lines,
    "jsonl": open_jsonl,
    "csv": open_csv,
    "parquet": open_parquet,
}


def _text(place: Callable[[], str], text: bytes, span: Span, offset: int, wanted: Sequence[str]) -> Record:
    """The record of a text that begins at a byte of the file, bad if it is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return Record(place, {}, _not_utf8(span, offset, error))
    return Record(place, dict.fromkeys(wanted[:1], text))


def _parts(file: IO[bytes], span: Span) -> Iterator[tuple[bytes, int, bool]]:
    """A text in parts of a few MiB that end where it may be cut; with each, its offset and whether it is the last."""
    left = None if is_compressed(span.path) else span.end - span.start
    held, offset = b"", span.start
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
                f"{span.name}: no line end within {MAX_RECORD >> 20} MiB after byte {offset}; is this text?"
            )
        more_to_come = left > 0 if left is not None else len(block) == PART_BYTES
        if more_to_come and (at := max(text_cuts(held, max(0, len(held) - 65536)), default=None)) is not None:
            yield held[:at], offset, False
            held, offset = held[at:], offset + at


def _separated(file: IO[bytes], span: Span, separator: bytes, wanted: Sequence[str]) -> Iterator[Record]:
    lines: list[bytes] = []
    first: Callable[[], str] = lambda: span.name  # noqa: E731 - of a file without a line
    begin = size = 0

    def gathered() -> Record:
        return _text(first, b"".join(lines).removesuffix(b"\n").removesuffix(b"\r"), span, begin, wanted)

    for place, line, offset in _lines(file, span):
        if line.rstrip(b"\r\n") == separator:
            yield gathered()
            lines, size = [], 0
        else:
            first, begin = (first, begin) if lines else (place, offset)
            lines.append(line)
            size += len(line)
            if size > MAX_RECORD:
                raise RecordError(f"{first()}: no separator line {separator!r} within {MAX_RECORD >> 20} MiB")
    yield gathered()


def _lines(file: IO[bytes], span: Span) -> Iterator[tuple[Callable[[], str], bytes, int]]:
    """The lines that begin in the span: what names the place of each, and its byte offset (in the unpacked file)."""
    line_of, number, offset = _lines_of(span), 0, span.start
    while line := file.readline(MAX_RECORD + 1):
        number += 1
        place = partial(line_of, number)
        if len(line) > MAX_RECORD:
            raise RecordError(f"{place()}: longer than {MAX_RECORD >> 20} MiB; is this the right format?")
        skip = len(BOM) if offset == 0 and line.startswith(BOM) else 0
        yield place, line[skip:], offset + skip
        offset += len(line)


class _Row(NamedTuple):
    """A row of a csv file, on how many lines; what is wrong with it, and the first byte that is no text."""

    cells: list[str]
    place: Callable[[], str]
    lines: int
    wrong: RecordError | None
    undecoded: RecordError | None


def _rows(file: IO[bytes], span: Span, dialect: dict[str, Any], hint: str) -> Iterator[_Row]:
    """The rows that begin in the span. Raises `RecordError` for a quote that never ends."""
    undecoded: RecordError | None = None
    places: list[Callable[[], str]] = []

    def decoded() -> Iterator[str]:
        nonlocal undecoded
        for place, line, offset in _lines(file, span):
            places.append(place)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                undecoded = undecoded or _not_utf8(span, offset, error)
                yield line.decode(errors="surrogateescape")

    rows = csv.reader(decoded(), **dialect)
    while True:
        cells, wrong, undecoded = list[str](), None, None
        places.clear()
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            so_far = f" (the record goes on for {len(places)} lines)" if len(places) > 1 else ""
            wrong = RecordError(f"{places[0]()}: not valid CSV: {error}{hint}{so_far}")
            if never_ends(error):
                raise wrong from error
        yield _Row(cells, places[0], len(places), wrong, undecoded)


def _rows_at_once(table: Any, groups: Sequence[int]) -> int:
    """So many rows of a Parquet file that they take about `PART_BYTES` where they are largest."""
    found = (table.metadata.row_group(group) for group in groups)
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in found), default=0)
    return max(1, min(MOST_ROWS, PART_BYTES // max(largest, 1)))


def _not_utf8(span: Span, offset: int, error: UnicodeDecodeError) -> RecordError:
    if (known := not_text(span.path)) is not None:
        return RecordError(f"{span.name} {known}")
    return RecordError(
        f"{span.name}: byte {offset + error.start} (0x{error.object[error.start]:02x}) is not valid UTF-8 "
        f"({error.reason}); convert it to UTF-8"
    )


def _lines_of(span: Span) -> Callable[[int], str]:
    """What names the place of a line by its number in the span, from 1; those before it are counted if one is asked."""

    @cache
    def before() -> int:
        number, left = 0, span.start
        with open_raw(span.path) as file:
            while left > 0 and (block := file.read(min(2**20, left))):
                number += block.count(b"\n")
                left -= len(block)
        return number

    return lambda number: f"{span.name}: line {before() + number}"


def _row_of(name: str, number: int) -> str:
    return f"{name}: row {number}"


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say which file, or data set, pyarrow cannot read."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise unreadable(name, error) from error
