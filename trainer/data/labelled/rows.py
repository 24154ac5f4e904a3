"""Rows of labelled data, from files and from data sets of the `datasets` library, each with its exact place.

Files are read by csv, json and pyarrow themselves: the builders of `datasets` guess types from values (a text that
looks like a date becomes a timestamp), name no row when one is bad, and cannot pass over it.
"""

import csv
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.common.errors import CorpusError, RecordError, reason_of
from trainer.config.chat import ChatDataConfig
from trainer.config.labelled import LabelledDataConfig
from trainer.data.csv_files import csv_dialect, csv_hint, never_ends, quoting_hint
from trainer.data.raw_bytes import RawFile, require_file
from trainer.data.raw_files import MAX_RECORD, not_text, open_bytes, open_raw, unreadable

if TYPE_CHECKING:
    from datasets import Dataset


BOM = b"\xef\xbb\xbf"
ROWS = 1024
"""Rows that are taken at a time out of a Parquet file or a data set."""

FIRST_LINE = "the first line"

csv.field_size_limit(MAX_RECORD)


@dataclass(frozen=True)
class Part:
    """A file, or a split of a data set: its name for people, where its rows are, and all files that they may come
    from.
    """

    name: str
    path: str = ""
    loaded: "Dataset | None" = None
    files: tuple[RawFile, ...] = ()

    def require_same(self) -> None:
        """Raise `ChangedFile` unless its files are what they were when they were looked at."""
        for file in self.files:
            require_file(file)


class Row(NamedTuple):
    """The values of the wanted columns, or a problem, of the row with this number (as the table's unit counts)."""

    number: int
    values: Sequence[Any]
    problem: str | None = None
    spans: bool = False
    """Whether the row goes on over line ends, in a file of lines."""


class Table(NamedTuple):
    """A part that was opened: its columns, its class names if it has them, and how to read some of its columns."""

    columns: list[str]
    class_names: list[str] | None
    unit: str
    rows: Callable[[Sequence[str]], Iterator[Row]]


def open_table(part: Part, data: LabelledDataConfig | ChatDataConfig) -> Table:
    """Open a part, reading no more than its head.

    Raises `CorpusError`, also later, if it is damaged, and after its last row if it is not what was looked at.
    """
    with _explained(part):
        label = data.label_column if isinstance(data, LabelledDataConfig) and data.label_columns is None else None
        table = _open_loaded(part, label) if part.loaded is not None else _open_file(part, data, label)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        with _explained(part):
            try:
                yield from table.rows(columns)
            except Exception:
                part.require_same()
                raise
            part.require_same()

    return table._replace(rows=rows)


def _open_file(part: Part, data: LabelledDataConfig | ChatDataConfig, label: str | None) -> Table:
    if isinstance(data, LabelledDataConfig) and data.source == "csv":
        return _open_csv(part, data)
    return _open_parquet(part, label) if data.source == "parquet" else _open_jsonl(part)


def columns_of(data: LabelledDataConfig) -> list[str]:
    """The columns that are read: texts, label or labels, and id if there is one."""
    return [*data.text_columns, *data.columns_of_labels, *([data.id_column] if data.id_column else [])]


def _open_csv(part: Part, data: LabelledDataConfig) -> Table:
    dialect, hint = csv_dialect(data, part.name), quoting_hint(data, part.name)

    def text() -> io.TextIOWrapper:
        return io.TextIOWrapper(open_raw(part.path), encoding="utf-8-sig", errors="surrogateescape", newline="")

    with text() as file:
        header, named_by = _read_header(part, data, csv.reader(file, **dialect), hint)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        places = [header.index(column) for column in columns]
        with text() as file:
            reader = csv.reader(file, **dialect)
            if named_by == FIRST_LINE:
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
                    if never_ends(error):
                        raise RecordError(f"{part.name}: line {line}: {problem}") from error
                    yield Row(line, (), problem)
                    continue
                if row and len(row) != len(header):
                    yield Row(line, (), f"{len(row)} columns, {named_by} names {len(header)}{hint}")
                elif row:
                    yield Row(line, [row[place] for place in places], spans=reader.line_num > line)

    return Table(header, None, "line", rows)


def _read_header(part: Part, data: LabelledDataConfig, rows: Iterator[list[str]], hint: str) -> tuple[list[str], str]:
    """The names of a file's columns, and what names them: its first line, or the setting `columns`.

    With that setting, a first line is a header only if it names the text columns itself. A file that has as many
    columns as the setting names besides those of labels is one without labels, as test files are.
    """
    try:
        first = next(rows, [])
    except csv.Error as error:
        raise CorpusError(f"{part.name}: line 1: not valid CSV: {error}{hint}") from error
    try:
        "".join(first).encode()
    except UnicodeEncodeError as error:
        known = not_text(part.path)
        told = f"{part.name} {known}" if known else f"{part.name}: line 1 is not valid UTF-8; convert the file to UTF-8"
        raise CorpusError(told) from error
    if data.columns is not None and not set(data.text_columns) <= set(first):
        named = list(data.columns)
        if like := [
            cell for cell, name in zip(first, named, strict=False) if cell.strip().casefold() == name.casefold()
        ]:
            raise CorpusError(
                f"{part.name}: line 1 looks like a header, as it names {like[0]!r}; leave `columns` out, or name "
                "text_columns as it does"
            )
        labels = data.columns_of_labels
        if len(first) == len(named) - len(labels) and set(labels) <= set(named):
            return [
                name for name in named if name not in labels
            ], f"`columns` without the label{'s'[: len(labels) > 1]}"
        return named, "`columns`"
    if twice := [column for column in columns_of(data) if first.count(column) > 1]:
        raise CorpusError(f"{part.name}: the first line names the column {twice[0]!r} twice; rename one of them")
    return first, FIRST_LINE


def _open_jsonl(part: Part) -> Table:
    def records() -> Iterator[tuple[int, dict[str, Any] | None, str | None]]:
        with open_raw(part.path) as file:
            number = 0
            while line := file.readline(MAX_RECORD + 1):
                number += 1
                if len(line) > MAX_RECORD:
                    raise RecordError(
                        f"{part.name}: line {number}: longer than {MAX_RECORD >> 20} MiB; is this JSON Lines?"
                    )
                if not (line := line.removeprefix(BOM) if number == 1 else line).strip():
                    continue
                try:
                    record = json.loads(line.decode())
                except UnicodeDecodeError as error:
                    known = not_text(part.path)
                    yield (
                        number,
                        None,
                        f"the file {known}" if known else f"not valid UTF-8 ({reason_of(error)}); convert it",
                    )
                except (ValueError, RecursionError) as error:
                    yield number, None, f"not valid JSON: {error}{csv_hint(part.name)}"
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


def _open_parquet(part: Part, label: str | None) -> Table:
    import pyarrow.parquet as pq
    from datasets import Features

    with open_bytes(part.path) as file:
        schema = pq.ParquetFile(file).schema_arrow
    described = b"huggingface" in (schema.metadata or {})
    feature = Features.from_arrow_schema(schema).get(label) if described else None

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        with open_bytes(part.path) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=ROWS, columns=list(columns)):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    yield Row(number, values)
                    number += 1

    return Table(list(schema.names), _class_names(feature), "row", rows)


def _open_loaded(part: Part, label: str | None) -> Table:
    loaded = part.loaded
    assert loaded is not None

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        for block in loaded.select_columns(list(columns)).with_format(None).iter(batch_size=ROWS):
            for values in zip(*(block[column] for column in columns), strict=True):
                yield Row(number, values)
                number += 1

    return Table(list(loaded.column_names), _class_names(loaded.features.get(label)), "row", rows)


def _class_names(feature: Any) -> list[str] | None:
    from datasets import ClassLabel

    feature = getattr(feature, "feature", feature)  # of a list's entries
    return list(feature.names) if isinstance(feature, ClassLabel) else None


@contextmanager
def _explained(part: Part) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise unreadable(part.name, error) from error
