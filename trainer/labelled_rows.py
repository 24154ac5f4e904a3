"""Rows of labelled data, from files and from data sets of the `datasets` library, each with its exact place.

Files are read by csv, json and pyarrow themselves: the builders of `datasets` guess types from values (a text that looks
like a date becomes a timestamp), name no row when one is bad, and cannot pass over it.
"""

import csv
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.config import CorpusConfig
from trainer.errors import CorpusError, RecordError
from trainer.finetune_config import LabelledDataConfig
from trainer.sources import MAX_RECORD, csv_delimiter, open_bytes, open_raw, unreadable

if TYPE_CHECKING:
    from datasets import Dataset

BOM = b"\xef\xbb\xbf"
ROWS = 1024
"""Rows that are taken at a time out of a Parquet file or a data set."""

csv.field_size_limit(MAX_RECORD)


@dataclass(frozen=True)
class Part:
    """A file, or a split of a data set: its name for people, and where its rows are."""

    name: str
    path: str = ""
    loaded: "Dataset | None" = None


class Row(NamedTuple):
    """The values of the wanted columns, or a problem, of the row with this number (as the table's unit counts)."""

    number: int
    values: Sequence[Any]
    problem: str | None = None


class Table(NamedTuple):
    """A part that was opened: its columns, its class names if it has them, and how to read some of its columns."""

    columns: list[str]
    class_names: list[str] | None
    unit: str
    rows: Callable[[Sequence[str]], Iterator[Row]]


def open_table(part: Part, data: LabelledDataConfig) -> Table:
    """Open a part, reading no more than its head. Raises `CorpusError`, also later, if it is damaged."""
    with _explained(part):
        table = _open_loaded(part, data) if part.loaded is not None else OPENERS[data.source](part, data)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        with _explained(part):
            yield from table.rows(columns)

    return table._replace(rows=rows)


def columns_of(data: LabelledDataConfig) -> list[str]:
    """The columns that are read: texts, label, and id if there is one."""
    return [*data.text_columns, data.label_column, *([data.id_column] if data.id_column else [])]


def delimiter_of(data: LabelledDataConfig, path: str) -> str:
    """The column delimiter of a csv file: as given, else by the file's ending."""
    return csv_delimiter(CorpusConfig(name=data.name, paths=[path], delimiter=data.delimiter), path)


def _open_csv(part: Part, data: LabelledDataConfig) -> Table:
    quoting = csv.QUOTE_MINIMAL if data.quoting else csv.QUOTE_NONE
    # Strict, because a stray quote character would otherwise make one text out of many rows and say nothing.
    options: dict[str, Any] = {"delimiter": delimiter_of(data, part.name), "quoting": quoting, "strict": True}
    hint = "; if quote characters are text here, set quoting to false" if data.quoting else ""

    def text() -> io.TextIOWrapper:
        return io.TextIOWrapper(open_raw(part.path), encoding="utf-8-sig", errors="surrogateescape", newline="")

    try:
        with text() as file:
            header = next(csv.reader(file, **options), [])
    except csv.Error as error:
        raise CorpusError(f"{part.name}: line 1: not valid CSV: {error}{hint}") from error
    try:
        "".join(header).encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{part.name}: line 1 is not valid UTF-8; convert the file to UTF-8") from error
    if twice := [column for column in columns_of(data) if header.count(column) > 1]:
        raise CorpusError(f"{part.name}: the first line names the column {twice[0]!r} twice; rename one of them")

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        places = [header.index(column) for column in columns]
        with text() as file:
            reader = csv.reader(file, **options)
            next(reader)
            while True:
                line = reader.line_num + 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    last = f" (up to line {reader.line_num})" if reader.line_num > line else ""
                    problem = f"not valid CSV: {error}{last}{hint}"
                    if "unexpected end" in str(error):  # all the rest of the file: not one record that may be skipped
                        raise RecordError(f"{part.name}: line {line}: {problem}") from error
                    yield Row(line, (), problem)
                    continue
                if row and len(row) != len(header):
                    yield Row(line, (), f"{len(row)} columns, the first line names {len(header)}{hint}")
                elif row:
                    yield Row(line, [row[place] for place in places])

    return Table(header, None, "line", rows)


def _open_jsonl(part: Part, data: LabelledDataConfig) -> Table:
    def records() -> Iterator[tuple[int, dict[str, Any] | None, str | None]]:
        with open_raw(part.path) as file:
            number = 0
            while line := file.readline(MAX_RECORD + 1):
                number += 1
                if len(line) > MAX_RECORD:
                    raise RecordError(f"{part.name}: line {number}: longer than {MAX_RECORD >> 20} MiB; is this JSON Lines?")
                if not (line := line.removeprefix(BOM) if number == 1 else line).strip():
                    continue
                try:
                    record = json.loads(line.decode())
                except (ValueError, RecursionError) as error:
                    yield number, None, f"not valid JSON: {error}"
                    continue
                if isinstance(record, dict):
                    yield number, record, None
                else:
                    yield number, None, f"a JSON object was expected, found {type(record).__name__}"

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        for number, record, problem in records():
            yield Row(number, () if record is None else [record.get(column) for column in columns], problem)

    trouble = f"{part.name} holds no record"
    for count, (number, record, problem) in enumerate(records()):
        if record is not None:
            return Table(list(record), None, "line", rows)
        trouble = trouble if count else f"{part.name}: line {number}: {problem}"
    raise RecordError(trouble)


def _open_parquet(part: Part, data: LabelledDataConfig) -> Table:
    import pyarrow.parquet as pq
    from datasets import Features

    with open_bytes(part.path) as file:
        schema = pq.ParquetFile(file).schema_arrow
    described = b"huggingface" in (schema.metadata or {})
    feature = Features.from_arrow_schema(schema).get(data.label_column) if described else None

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        with open_bytes(part.path) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=ROWS, columns=list(columns)):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    yield Row(number, values)
                    number += 1

    return Table(list(schema.names), _class_names(feature), "row", rows)


def _open_loaded(part: Part, data: LabelledDataConfig) -> Table:
    loaded = part.loaded
    assert loaded is not None

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        for block in loaded.select_columns(list(columns)).with_format(None).iter(batch_size=ROWS):
            for values in zip(*(block[column] for column in columns), strict=True):
                yield Row(number, values)
                number += 1

    return Table(list(loaded.column_names), _class_names(loaded.features.get(data.label_column)), "row", rows)


def _class_names(feature: Any) -> list[str] | None:
    from datasets import ClassLabel

    return list(feature.names) if isinstance(feature, ClassLabel) else None


OPENERS: dict[str, Callable[[Part, LabelledDataConfig], Table]] = {
    "csv": _open_csv,
    "jsonl": _open_jsonl,
    "parquet": _open_parquet,
}


@contextmanager
def _explained(part: Part) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise unreadable(part.name, error) from error
