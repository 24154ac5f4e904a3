"""Files to records: the records of each format, the location of each in its file, and the errors of bad ones.

Corpora, labelled data, conversations, evaluation sets and new texts are all read by this module; its callers interpret
the records. A new format is one function and one line of `FORMATS`, and more if its files do not consist of lines
(docs/how-to/add-a-format.md); formats of plain text are in readers.py. Memory is bounded: records are streamed, and one
takes at most `MAX_RECORD` bytes.
"""

import csv
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from trainer.common.errors import RecordError
from trainer.data.raw_files import (
    BOM,
    MAX_RECORD,
    CsvSettings,
    csv_dialect,
    csv_header,
    csv_hint,
    not_text,
    open_raw,
    quoting_hint,
    unreadable,
)

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

csv.field_size_limit(MAX_RECORD)

PART_BYTES = 4 * 2**20
"""About the size of the part of a large document that is read, and tokenized, at a time."""

MOST_ROWS = 256
"""Rows of a Parquet file or a data set read at a time."""

FIRST_LINE = "the first line"

OTHER_JSON = {
    "an array": (rb"\s*\[\s*{", "'.[]'"),
    "an object over several lines": (rb"\s*{[ \t\r]*\n\s*\"", "."),
}
"""Forms of JSON besides JSON Lines: how a file's first two lines begin, and the filter of jq that converts it."""

LONE_RETURN = (
    "lone carriage return outside quotes; if all lines end with one, convert them, such as by `tr '\\r' '\\n'`; if it "
    "is part of a text, quote the text"
)


class Span(NamedTuple):
    """A range of a raw file: its bytes `[start, end)`, or row groups of Parquet; `name` is used in messages.

    `last` is whether it ends at the file's end.
    """

    name: str
    path: str
    start: int = 0
    end: int = sys.maxsize
    last: bool = True


class Reading(NamedTuple):
    """How to find the records of a file, whatever they mean.

    `csv` has the settings of csv files. `all_text`: a csv record with any byte that is not UTF-8 is bad; otherwise
    values hold such bytes as surrogates.
    `name_columns` returns the names of a csv file's columns and their origin, given the file's name and its first row;
    if the origin is not `FIRST_LINE`, the first row is a record.
    """

    format: str
    csv: CsvSettings | None = None
    all_text: bool = False
    name_columns: Callable[[str, list[str]], tuple[list[str], str]] = lambda name, row: (row, FIRST_LINE)


class Record(NamedTuple):
    """A record: a function that returns its location, and its values by column, or the error in `wrong`.

    `spans`: whether the record spans several lines.
    """

    place: Callable[[], str]
    values: Mapping[str, Any]
    wrong: RecordError | None = None
    spans: bool = False


class Table(NamedTuple):
    """An open file: its columns (None: each record has its own), and a function that reads the wanted ones, once.

    Missing columns are ignored. `features` returns a data set's description of its columns.
    """

    columns: list[str] | None
    records: Callable[[Sequence[str]], Iterator[Record]]
    features: Callable[[], Mapping[str, Any]] = dict


def open_jsonl(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One JSON object per line, with all its fields. Blank lines are skipped."""
    line_of = line_names(span)

    def read(number: int, line: bytes, offset: int) -> Record:
        place = partial(line_of, number)
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return Record(place, {}, not_utf8(span, offset, error))
        except (ValueError, RecursionError) as error:
            return Record(place, {}, RecordError(f"{place()}: not valid JSON: {error}{csv_hint(span.name)}"))
        if not isinstance(record, dict):
            problem = f"expected a JSON object, found {type(record).__name__}"
            return Record(place, {}, RecordError(f"{place()}: {problem}"))
        return Record(place, record)

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        filled = (line for line in lines_in(file, span) if line[1].strip())
        first = list(islice(filled, 2)) if span.start == 0 else []
        if first:
            _require_json_lines(line_of(first[0][0]), [line for _, line, _ in first])
        return (read(*line) for line in chain(first, filled))

    return Table(None, records)


def _require_json_lines(place: str, first: Sequence[bytes]) -> None:
    """Raise `RecordError` if the first two lines of a file show that it is JSON in another form than JSON Lines.

    If the first of two lines is complete JSON, they are JSON Lines, although it may not be an object.
    """
    for form, (begins, convert) in OTHER_JSON.items():
        if re.match(begins, b"".join(first)) and (len(first) == 1 or not _is_json(first[0])):
            raise RecordError(
                f"{place}: the file is not JSON Lines: it begins with {form}; expected one object in each "
                f"line: convert it, such as by `jq -c {convert} FILE > NEW.jsonl`"
            )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def open_csv(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record per row; the columns' names are in the file's first row, or as in `reading`."""
    settings = reading.csv
    assert settings is not None  # only conversations have no csv settings, and they are never read as csv
    hint = quoting_hint(settings, span.name)
    rows = _rows(file, span, csv_dialect(settings, span.name), hint)
    header, named_by = list[str](), FIRST_LINE
    if span.start > 0:
        header, _ = csv_header(span.path, settings)
    else:
        first = next((row for row in rows if row[0] or row[3] or row[4]), None)  # blank lines may come before it
        if first is None:
            header, named_by = reading.name_columns(span.name, [])
        else:
            cells, _, _, wrong, undecoded = first
            if (problem := wrong or undecoded) is not None:
                raise problem
            header, named_by = reading.name_columns(span.name, cells)
            rows = rows if named_by == FIRST_LINE else chain([first], rows)

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        _require_once(span.name, header, wanted)
        columns = [(name, header.index(name)) for name in wanted if name in header]
        for cells, place, lines, wrong, undecoded in rows:
            if reading.all_text:
                wrong = wrong or undecoded
            if wrong is None and cells and len(cells) != len(header):
                wrong = RecordError(f"{place()}: {len(cells)} columns, {named_by} has {len(header)}{hint}")
            if wrong is not None:
                yield Record(place, {}, wrong)
            elif cells:
                values = {}
                for name, column in columns:
                    values[name] = cells[column]
                yield Record(place, values, None, lines > 1)

    return Table(header, records)


def open_parquet(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record per row."""
    import pyarrow.parquet as pq

    with _explained(span.name):
        table = pq.ParquetFile(file)
        schema = table.schema_arrow

    def features() -> Mapping[str, Any]:
        from datasets import Features

        described = b"huggingface" in (schema.metadata or {})
        return dict(Features.from_arrow_schema(schema)) if described else {}

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        _require_once(span.name, schema.names, wanted)
        with _explained(span.name):
            groups = list(range(span.start, min(span.end, table.metadata.num_row_groups)))
            number = sum(table.metadata.row_group(group).num_rows for group in range(span.start))
            columns = list(dict.fromkeys(name for name in wanted if name in schema.names))
            for batch in table.iter_batches(_rows_at_once(table, groups), row_groups=groups, columns=columns):
                end = number + batch.num_rows
                yield from _rows_between(span.name, number, end, partial(_rows_of_batch, batch, number))
                number = end

    return Table(list(schema.names), records, features)


def _require_once(name: str, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `RecordError` if several columns of a file have the name of a wanted one."""
    for column in wanted:
        if (times := columns.count(column)) > 1:
            raise RecordError(f"{name} has {times} columns named {column!r}; give them different names")


def _rows_of_batch(batch: Any, first: int, start: int, end: int) -> list[dict[str, Any]]:
    """The rows `[start, end)` of a file, from a batch that begins with the row `first`."""
    rows: list[dict[str, Any]] = batch.slice(start - first, end - start).to_pylist()
    return rows


def _rows_between(
    name: str, start: int, end: int, read: Callable[[int, int], list[dict[str, Any]]]
) -> Iterator[Record]:
    """The rows of a table that `read` returns, as records; one with a text that is not UTF-8 is bad."""
    place = partial(_row_of, name, start)
    try:
        rows = read(start, end)
    except UnicodeDecodeError as error:
        if end - start > 1:  # finds the row
            middle = (start + end) // 2
            yield from _rows_between(name, start, middle, read)
            yield from _rows_between(name, middle, end, read)
        else:
            found = f"byte {error.start} of a text (0x{error.object[error.start]:02x}) is not valid UTF-8"
            yield Record(place, {}, RecordError(f"{place()}: {found} ({error.reason}); convert it to UTF-8"))
        return
    for number, values in enumerate(rows, start):
        yield Record(partial(_row_of, name, number), values)


def open_loaded(name: str, loaded: "Dataset") -> Table:
    """A split of a data set loaded by the `datasets` library: one record per row."""

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        columns = [column for column in wanted if column in loaded.column_names]
        plain = loaded.select_columns(columns).with_format(None)

        def read(start: int, end: int) -> list[dict[str, Any]]:
            block = plain[start:end]
            rows = zip(*(block[column] for column in columns), strict=True)
            return [dict(zip(columns, values, strict=True)) for values in rows]

        with _explained(name):
            for start in range(0, len(loaded), MOST_ROWS):
                yield from _rows_between(name, start, min(start + MOST_ROWS, len(loaded)), read)

    return Table(list(loaded.column_names), records, lambda: dict(loaded.features))


FORMATS: dict[str, Callable[[IO[bytes], Span, Reading], Table]] = {
    "jsonl": open_jsonl,
    "csv": open_csv,
    "parquet": open_parquet,
}
"""By format, the function that opens it: the span's decompressed bytes, in a file that may not be seekable unless the
format is in `RANDOM_ACCESS` (raw_files.py).
"""


def lines_in(file: IO[bytes], span: Span) -> Iterator[tuple[int, bytes, int]]:
    """The lines that begin in the span: the number of each in it, from 1, and its byte offset in the unpacked file."""
    number, offset = 0, span.start
    while line := file.readline(MAX_RECORD + 1):
        number += 1
        if len(line) > MAX_RECORD:
            raise RecordError(
                f"{line_names(span)(number)}: longer than {MAX_RECORD >> 20} MiB; check that the format is right"
            )
        if offset == 0 and line.startswith(BOM):
            yield number, line[len(BOM) :], len(BOM)
        else:
            yield number, line, offset
        offset += len(line)


def _rows(
    file: IO[bytes], span: Span, dialect: dict[str, Any], hint: str
) -> Iterator[tuple[list[str], Callable[[], str], int, RecordError | None, RecordError | None]]:
    """The rows that begin in the span: cells, a function for the location, the number of lines, the error of a bad row,
    and the error of the first byte that is not UTF-8.

    Raises `RecordError` for a quote that never ends.
    """
    undecoded: RecordError | None = None
    line_of, begin, last = line_names(span), 1, 0

    def decoded() -> Iterator[str]:
        nonlocal last, undecoded
        for last, line, offset in lines_in(file, span):  # noqa: B007 - `last` is used outside
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                undecoded = undecoded or not_utf8(span, offset, error)
                yield line.decode(errors="surrogateescape")

    rows = csv.reader(decoded(), **dialect)
    while True:
        cells, wrong, undecoded = list[str](), None, None
        begin = last + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            so_far = f" (the record spans {last - begin + 1} lines)" if last > begin else ""
            what = LONE_RETURN if "new-line character" in str(error) else f"{error}{hint}"
            wrong = RecordError(f"{line_of(begin)}: not valid CSV: {what}{so_far}")
            if "unexpected end" in str(error):  # an unclosed quote: the rest of the file is unusable, not one record
                raise wrong from error
        yield cells, partial(line_of, begin), last - begin + 1, wrong, undecoded


def _rows_at_once(table: Any, groups: Sequence[int]) -> int:
    """The number of rows of a Parquet file that take about `PART_BYTES` at their largest."""
    found = (table.metadata.row_group(group) for group in groups)
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in found), default=0)
    return max(1, min(MOST_ROWS, PART_BYTES // max(largest, 1)))


def not_utf8(span: Span, offset: int, error: UnicodeDecodeError) -> RecordError:
    """The error for text at a byte offset (of the decompressed file) that is not UTF-8."""
    if (known := not_text(span.path)) is not None:
        return RecordError(f"{span.name} {known}")
    return RecordError(
        f"{span.name}: byte {offset + error.start} (0x{error.object[error.start]:02x}) is not valid UTF-8 "
        f"({error.reason}); convert it to UTF-8"
    )


def line_names(span: Span) -> Callable[[int], str]:
    """A function from a line's number in the span, from 1, to its location.

    It counts the lines before the span once; far into a file, where that would take long, it gives the span's offset.
    """
    if span.start > MAX_RECORD:
        return lambda number: f"{span.name}: line {number} after byte {span.start:,}"

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


def read_number(value: Any) -> float:
    """A value of a record as a number. Raises `ValueError`, `TypeError` or `OverflowError` if it is none."""
    if isinstance(value, str) and "_" in value:  # Python reads 1_000 as 1000
        raise ValueError(f"{value!r} is not a number")
    return float(value)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Convert pyarrow's errors to errors with the file's or data set's name."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise unreadable(name, error) from error
