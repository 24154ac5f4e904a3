"""Files to records: what a file of each format holds, where each record stands in it, and what is wrong with bad ones.

Corpora, labelled data, conversations, evaluation sets and new texts are all read by this, and say what a record means.
A new format is one function and one line of `FORMATS`, and more if its files are not lines
(docs/how-to/add-a-format.md); those of mere text are in readers.py. Memory is bounded: records
stream, and one takes at most `MAX_RECORD` bytes.
"""

import csv
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from trainer.common.errors import RecordError
from trainer.data.raw_files import (
    BOM,
    MAX_RECORD,
    UNQUOTE,
    CsvSettings,
    csv_dialect,
    csv_header,
    csv_hint,
    is_quoted,
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
"""About how much of a document of any size is read, and tokenized, at once."""

MOST_ROWS = 256
"""Of a Parquet file or a data set, read at once."""

FIRST_LINE = "the first line"

SHORT_TEXT = 500
"""Characters; texts of no more on average are lines of a table rather than documents with line ends of their own."""

LONE_RETURN = (
    "a carriage return stands alone, outside quotes; if all lines end so, convert them, such as by `tr '\\r' '\\n'`; "
    "if it is a text's own, quote the text"
)

RARE = 0.05
"""The share of records that span lines up to which they are exceptions in their file."""


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

    `csv` says how csv files are read. `all_text`: of them, a record is bad if any of its bytes is no UTF-8; else its
    values hold these as surrogates.
    `name_columns` tells the names of a csv file's columns, and what names them, by the file's name and its first row:
    where that is not `FIRST_LINE`, the row is a record.
    """

    format: str
    csv: CsvSettings | None = None
    all_text: bool = False
    name_columns: Callable[[str, list[str]], tuple[list[str], str]] = lambda name, row: (row, FIRST_LINE)


class Record(NamedTuple):
    """A record: what names its place, and its values by column, or what is `wrong` with it.

    `spans`: whether the record goes on over line ends, in a file of lines.
    """

    place: Callable[[], str]
    values: Mapping[str, Any]
    wrong: RecordError | None = None
    spans: bool = False


class Table(NamedTuple):
    """A file that is open: its columns (None: each record has its own), and how to read the wanted ones, once.

    Columns that are not there are passed over. `features` are what a data set says of its columns.
    """

    columns: list[str] | None
    records: Callable[[Sequence[str]], Iterator[Record]]
    features: Callable[[], Mapping[str, Any]] = dict


def open_jsonl(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One JSON object a line, all of whose fields are read. Blank lines are passed over."""
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
            problem = f"a JSON object was expected, found {type(record).__name__}"
            return Record(place, {}, RecordError(f"{place()}: {problem}"))
        return Record(place, record)

    def records(wanted: Sequence[str]) -> Iterator[Record]:
        return (read(*line) for line in lines_in(file, span) if line[1].strip())

    return Table(None, records)


def open_csv(file: IO[bytes], span: Span, reading: Reading) -> Table:
    """One record a row; columns are named by the file's first row, or as the reading says."""
    settings = reading.csv
    assert settings is not None  # conversations alone have none, which are never read as csv
    hint = quoting_hint(settings, span.name)
    rows = _rows(file, span, csv_dialect(settings, span.name), hint)
    header, named_by = list[str](), FIRST_LINE
    if span.start > 0:
        header, _ = csv_header(span.path, settings)
    else:
        first = next(rows, None)
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
                wrong = RecordError(f"{place()}: {len(cells)} columns, {named_by} names {len(header)}{hint}")
            if wrong is not None:
                yield Record(place, {}, wrong)
            elif cells:
                values = {}
                for name, column in columns:
                    values[name] = cells[column]
                yield Record(place, values, None, lines > 1)

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
        _require_once(span.name, schema.names, wanted)
        with _explained(span.name):
            groups = list(range(span.start, min(span.end, table.metadata.num_row_groups)))
            number = sum(table.metadata.row_group(group).num_rows for group in range(span.start))
            columns = list(dict.fromkeys(name for name in wanted if name in schema.names))
            for batch in table.iter_batches(_rows_at_once(table, groups), row_groups=groups, columns=columns):
                for values in batch.to_pylist():
                    yield Record(partial(_row_of, span.name, number), values)
                    number += 1

    return Table(list(schema.names), records, features)


def _require_once(name: str, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `RecordError` if several columns of a file have the name of one that is wanted."""
    for column in wanted:
        if (times := columns.count(column)) > 1:
            raise RecordError(f"{name} has {times} columns named {column!r}; give each a name of its own")


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
    "jsonl": open_jsonl,
    "csv": open_csv,
    "parquet": open_parquet,
}
"""How each format is opened: the span's bytes, unpacked, in a file that may not be seekable, become a table."""


def lines_in(file: IO[bytes], span: Span) -> Iterator[tuple[int, bytes, int]]:
    """The lines that begin in the span: the number of each in it, from 1, and its byte offset in the unpacked file."""
    number, offset = 0, span.start
    while line := file.readline(MAX_RECORD + 1):
        number += 1
        if len(line) > MAX_RECORD:
            raise RecordError(
                f"{line_names(span)(number)}: longer than {MAX_RECORD >> 20} MiB; is this the right format?"
            )
        if offset == 0 and line.startswith(BOM):
            yield number, line[len(BOM) :], len(BOM)
        else:
            yield number, line, offset
        offset += len(line)


def _rows(
    file: IO[bytes], span: Span, dialect: dict[str, Any], hint: str
) -> Iterator[tuple[list[str], Callable[[], str], int, RecordError | None, RecordError | None]]:
    """The rows that begin in the span: the cells of each, what names its place, on how many lines it is, what is wrong
    with it, and the first byte that is no text.

    Raises `RecordError` for a quote that never ends.
    """
    undecoded: RecordError | None = None
    line_of, begin, last = line_names(span), 1, 0

    def decoded() -> Iterator[str]:
        nonlocal last, undecoded
        for last, line, offset in lines_in(file, span):  # noqa: B007 - the loop's number is what is kept
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
            so_far = f" (the record goes on for {last - begin + 1} lines)" if last > begin else ""
            what = LONE_RETURN if "new-line character" in str(error) else f"{error}{hint}"
            wrong = RecordError(f"{line_of(begin)}: not valid CSV: {what}{so_far}")
            if "unexpected end" in str(error):  # a quote is open still: all the rest is bad, and not one record
                raise wrong from error
        yield cells, partial(line_of, begin), last - begin + 1, wrong, undecoded


def watched(
    records: Iterable[Record],
    columns: Sequence[str],
    settings: CsvSettings,
    path: str,
) -> Iterator[Record]:
    """The records of a file, with texts in some columns.

    At the end it warns of signs that quote characters mean something else than they are taken for: if a few records go
    on over line ends, the others being short, or if texts are quoted after all.
    """
    quoted = is_quoted(csv_dialect(settings, path))
    count = odd = characters = 0
    first: Callable[[], str] | None = None
    for record in records:
        yield record
        place, values, wrong, spans = record
        if wrong is not None:
            continue
        count += 1
        # A column may be missing: the file was replaced, which is told at its end.
        if spans if quoted else any(_is_escaped(values.get(column) or "") for column in columns):
            odd += 1
            first = first or place
        else:
            for column in columns:
                characters += len(values.get(column) or "")
    if first is None:
        return
    more, others = f", and {odd - 1:,} more do" if odd > 1 else "", count - odd
    if not quoted and settings.quoting is None:
        log.warning(
            "%s: a text stands in quotes, its own quotes doubled%s, but quote characters are taken as text in files "
            "with tabs between columns; if they quote here, set quoting to true", first(), more,
        )  # fmt: skip
    elif quoted and odd <= RARE * count and characters <= SHORT_TEXT * others:
        log.warning(
            "%s: a record in quotes goes on over line ends%s, while the other %s are short and on a line each: are "
            "several records taken for one%s?", first(), more, f"{others:,}", UNQUOTE,
        )  # fmt: skip


def _is_escaped(text: str) -> bool:
    """Whether a text is written as csv writes one that holds quotes."""
    return (
        len(text) > 3 and text[0] == text[-1] == '"' and '""' in text[1:-1] and '"' not in text[1:-1].replace('""', "")
    )


def _rows_at_once(table: Any, groups: Sequence[int]) -> int:
    """So many rows of a Parquet file that they take about `PART_BYTES` where they are largest."""
    found = (table.metadata.row_group(group) for group in groups)
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in found), default=0)
    return max(1, min(MOST_ROWS, PART_BYTES // max(largest, 1)))


def not_utf8(span: Span, offset: int, error: UnicodeDecodeError) -> RecordError:
    """The error for what begins at a byte offset (of the unpacked file) and is not UTF-8."""
    if (known := not_text(span.path)) is not None:
        return RecordError(f"{span.name} {known}")
    return RecordError(
        f"{span.name}: byte {offset + error.start} (0x{error.object[error.start]:02x}) is not valid UTF-8 "
        f"({error.reason}); convert it to UTF-8"
    )


def line_names(span: Span) -> Callable[[int], str]:
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
