"""One look at every row of labelled data: is it good, what is its label, and a digest of its texts."""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.errors import RecordError
from trainer.finetune_config import LabelledDataConfig
from trainer.labelled_rows import Part, Row, Table, columns_of, open_table
from trainer.labels import Label, plain_label
from trainer.shards import is_held_out

BAD = -1
"""Stands for the number of the label in rows that are passed over."""


class Scan(NamedTuple):
    """What is kept of a split's rows, a few bytes each.

    `codes`: the number of the row's label among the distinct `values`, or BAD; `digests`: of its texts; `held`: whether a
    hash of them puts it on the validation side; all of shape [rows]. `bad` counts the rows that are BAD.
    """

    parts: Sequence[Part]
    codes: NDArray[np.int64]
    digests: NDArray[np.uint64]
    held: NDArray[np.bool_]
    values: list[Label | None]
    bad: int


def scan_rows(data: LabelledDataConfig, split: str, parts: Sequence[Part], cut: bool, advance: Callable[[int], None]) -> Scan:
    """Look at all rows of a split; with `cut`, decide which of them are held out for validation.

    Raises `RecordError` for the first bad row that may not be passed over.
    """
    codes, digests, held = array("q"), array("Q"), array("b")
    values: dict[Label | None, int] = {}
    bad = 0
    for place, row in rows_of(data, parts):
        problem, text, label = row.problem, b"", None
        if problem is None:
            try:
                text, label = _read(data, row.values)
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            bad += 1
            if bad > data.max_bad_records:
                raise bad_record(data, split, place(), problem)
        codes.append(BAD if problem is not None else values.setdefault(label, len(values)))
        digests.append(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
        held.append(cut and is_held_out(text, data.validation_fraction))
        advance(1)
    return Scan(
        parts,
        np.array(codes, dtype=np.int64),
        np.array(digests, dtype=np.uint64),
        np.array(held, dtype=bool),
        list(values),
        bad,
    )


def rows_of(data: LabelledDataConfig, parts: Sequence[Part]) -> Iterator[tuple[Callable[[], str], Row]]:
    """Every row, with what names its place; its values are texts, label (None if there is no such column), and id."""
    wanted, label = columns_of(data), len(data.text_columns)
    for part in parts:
        table = open_table(part, data)
        present = [column for column in wanted if column in table.columns]
        for row in table.rows(present):
            if row.problem is None and len(present) < len(wanted):
                row = row._replace(values=[*row.values[:label], None, *row.values[label:]])
            yield _namer(part, table, row.number), row


def bad_record(data: LabelledDataConfig, split: str, place: str, problem: str) -> RecordError:
    """The error for a row that may not be passed over."""
    allowed = f" (more than the {data.max_bad_records} that max_bad_records allows)" if data.max_bad_records else ""
    return RecordError(f"data set {data.name!r}, {split} split: {place}: {problem}{allowed}")


def _namer(part: Part, table: Table, number: int) -> Callable[[], str]:
    return lambda: f"{part.name}: {table.unit} {number}"


def _read(data: LabelledDataConfig, values: Sequence[Any]) -> tuple[bytes, Label | None]:
    """The texts of a row in one, and its label. Raises `ValueError` if one of them cannot be what it should."""
    texts = [_text(column, text) for column, text in zip(data.text_columns, values, strict=False)]
    if not any(text.strip() for text in values[: len(texts)]):
        raise ValueError(f"column {data.text_columns[0]!r} is empty")
    for column, value in zip(columns_of(data)[len(texts) :], values[len(texts) :], strict=True):
        if isinstance(value, str):
            _text(column, value)
    return b"\0".join(texts), plain_label(values[len(texts)], data)


def _text(column: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"column {column!r} holds {'no text' if value is None else type(value).__name__ + ', not text'}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"column {column!r} is not valid UTF-8 at character {error.start}; convert it to UTF-8") from error
