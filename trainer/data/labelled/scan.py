"""One look at every row of labelled data: is it good, what is its label, and a digest of its texts."""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.bad_records import BadRecords
from trainer.common.errors import RecordError
from trainer.common.stopping import check_stop
from trainer.config.chat import ChatDataConfig
from trainer.config.labelled import LabelledDataConfig
from trainer.data.csv_files import QuoteWatch
from trainer.data.labelled.rows import Part, Row, Table, columns_of, open_table
from trainer.data.labelled.words import KINDS, AnyLabel, require_words
from trainer.data.shards import is_held_out

BAD = -1
"""Stands for the number of the label in rows that are passed over."""

NAMELESS = 0
"""Stands for the digest of an id where there is none."""

Placed = tuple[Callable[[], str], Row]
"""A row, and what names its place."""


class Scan(NamedTuple):
    """What is kept of a split's rows: a few bytes each, and each label once, so that lists for words are about as many
    as rows.

    `codes`: the number of the row's label among the distinct `values`, or BAD; `digests`: of its texts; `held`: whether
    a hash of them puts it on the validation side; all of shape [rows]. `bad` are the rows that are BAD.
    """

    parts: Sequence[Part]
    codes: NDArray[np.int64]
    digests: NDArray[np.uint64]
    held: NDArray[np.bool_]
    values: list[Any]
    bad: BadRecords


def scan_rows(
    data: LabelledDataConfig,
    split: str,
    parts: Sequence[Part],
    cut: bool,
    advance: Callable[[int], None],
    most: int | None = None,
) -> Scan:
    """Look at all rows of a split, or at `most` of each part; with `cut`, decide which of them are held out for
    validation.

    Raises `RecordError` for the first bad row that may not be passed over; a row whose id names an earlier one too is
    bad.
    """
    codes, digests, held, ids = array("q"), array("Q"), array("b"), array("Q")
    values: dict[AnyLabel | None, int] = {}
    bad = bad_records(data, split)
    for place, row in watched_rows(data, parts, most):
        problem, text = row.problem, b""
        label: AnyLabel | None = None
        if problem is None:
            try:
                text, label = read_values(data, row.values)
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            bad.add(RecordError(f"{place()}: {problem}"))
        codes.append(BAD if problem is not None else values.setdefault(label, len(values)))
        digests.append(_digest(text))
        held.append(cut and is_held_out(text, data.validation_fraction))
        ids.append(NAMELESS if problem is not None else _digest_id(data, row))
        advance(1)
    found = np.array(codes, dtype=np.int64)
    if (repeated := _repeated(np.array(ids, dtype=np.uint64))).any():
        bad.add_all(int(repeated.sum()), _repeats(data, lambda: _rows(data, parts, most), repeated))
        found[repeated] = BAD
    return Scan(parts, found, np.array(digests, dtype=np.uint64), np.array(held, dtype=bool), list(values), bad)


def rows_of(data: LabelledDataConfig, parts: Sequence[Part]) -> Iterator[Placed]:
    """Every row and its place; the values are texts, label (None if there is no such column), and id if there is.

    Where each class has a column, their values are the label, as one.
    """
    wanted, labels, label = columns_of(data), data.columns_of_labels, len(data.text_columns)
    for part in parts:
        table = open_table(part, data)
        has_labels = set(labels) <= set(table.columns)
        present = [column for column in wanted if column in table.columns and (has_labels or column not in labels)]
        for row in table.rows(present):
            check_stop()
            if row.problem is None and not has_labels:
                row = row._replace(values=[*row.values[:label], None, *row.values[label:]])
            elif row.problem is None and data.label_columns is not None:
                after = label + len(labels)
                row = row._replace(values=[*row.values[:label], tuple(row.values[label:after]), *row.values[after:]])
            yield _namer(part, table, row.number), row


def id_of(data: LabelledDataConfig, row: Row) -> Any:
    """The value of a good row's id column, or None if there is no such column."""
    place = len(data.text_columns) + 1
    return row.values[place] if len(row.values) > place else None


def _rows(data: LabelledDataConfig, parts: Sequence[Part], most: int | None) -> Iterator[Placed]:
    """The rows of all parts, or so many of each."""
    return chain.from_iterable(islice(rows_of(data, [part]), most) for part in parts)


def watched_rows(data: LabelledDataConfig, parts: Sequence[Part], most: int | None) -> Iterator[Placed]:
    """The rows of all parts, or so many of each; at a csv file's end it is told if its quotes look misunderstood."""
    for part in parts:
        watch = QuoteWatch(data, part.name)
        for place, row in _rows(data, [part], most):
            if data.source == "csv" and row.problem is None:
                watch.add(row.values[: len(data.text_columns)], row.spans, place)
            yield place, row
        watch.warn()


def _repeated(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows have the id of an earlier one."""
    repeated: NDArray[np.bool_] = ids != NAMELESS
    rows = np.flatnonzero(repeated)
    repeated[rows[np.unique(ids[rows], return_index=True)[1]]] = False
    return repeated


def _repeats(
    data: LabelledDataConfig, rows: Callable[[], Iterator[Placed]], repeated: NDArray[np.bool_]
) -> Iterator[RecordError]:
    """The errors of rows whose ids earlier ones have; both are read again."""
    for place, row in compress(rows(), repeated):
        name = id_of(data, row)
        first = next(
            earlier for earlier, each in rows() if each.problem is None and str(id_of(data, each)) == str(name)
        )
        yield RecordError(f"{place()}: column {data.id_column!r}: {name!r} names {first()} too; ids may not repeat")


def _digest_id(data: LabelledDataConfig, row: Row) -> int:
    name = id_of(data, row)
    return NAMELESS if name is None else _digest(str(name).encode())


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def bad_records(data: LabelledDataConfig | ChatDataConfig, split: str | None) -> BadRecords:
    """The bad rows of a split, none of them found yet; `split` is None where there is only one."""
    return BadRecords(data.max_bad_records, f"data set {data.name!r}{f', {split} split' if split else ''}: ")


def _namer(part: Part, table: Table, number: int) -> Callable[[], str]:
    return lambda: f"{part.name}: {table.unit} {number}"


def read_values(data: LabelledDataConfig, values: Sequence[Any]) -> tuple[bytes, AnyLabel | None]:
    """The texts of a row in one, and its label. Raises `ValueError` if one of them cannot be what it should."""
    if by_words := data.task == "tokens":
        require_words(data.text_columns[0], values[0])
    given = texts_of(data, values)
    columns = repeat(data.text_columns[0]) if by_words else data.text_columns
    texts = [_text(column, text) for column, text in zip(columns, given, strict=False)]
    if not any(text.strip() for text in given):
        raise ValueError(f"column {data.text_columns[0]!r} is empty")
    named = [data.columns_of_labels[0], *([data.id_column] if data.id_column else [])]
    for column, value in zip(named, values[len(data.text_columns) :], strict=False):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                _text(column, text)
        if column == data.id_column and (value is None or value == ""):
            raise ValueError(f"column {column!r} is empty; leave id_column out to number the examples instead")
    return b"\0".join(texts), KINDS[data.task].plain(values[len(data.text_columns)], len(texts), data)


def texts_of(data: LabelledDataConfig, values: Sequence[Any]) -> tuple[Any, ...]:
    """The text of a row, the two of a pair, or its words."""
    return tuple(values[0]) if data.task == "tokens" else tuple(values[: len(data.text_columns)])


def _text(column: str, value: Any) -> bytes:
    if not isinstance(value, str):
        found = "no text" if value is None else f"{type(value).__name__}, not text"
        hint = "; for words that each have a label, set task to tokens" if isinstance(value, list) else ""
        raise ValueError(f"column {column!r} holds {found}{hint}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"column {column!r} is not valid UTF-8 at character {error.start}; convert it to UTF-8"
        ) from error
