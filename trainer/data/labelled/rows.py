"""Rows of labelled data: parsing a record, and a scan of all rows, which keeps labels and digests of texts."""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError
from trainer.common.stopping import check_stop
from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.label_kinds import TASKS, AnyLabel
from trainer.data.quotes import watched
from trainer.data.shards import is_held_out
from trainer.data.splits import Part, bad_records, look_at_columns, read_part
from trainer.data.tables import FIRST_LINE, Reading, Record

BAD = -1
"""Represents the label of skipped rows."""

NAMELESS = 0
"""Represents a missing id."""


class Row(NamedTuple):
    """A record's contents: texts or words, label, and id; or the error in `wrong`.

    The id is None if there is no id column.
    """

    place: Callable[[], str]
    texts: tuple[str, ...] = ()
    label: AnyLabel | None = None
    id: Any = None
    wrong: RecordError | None = None

    @property
    def text(self) -> bytes:
        """All texts joined; its hash decides which examples are held out."""
        return b"\0".join(map(str.encode, self.texts))

    def digest_of_id(self) -> int:
        """A digest of the id; `NAMELESS` without one."""
        return NAMELESS if self.id is None else _digest(str(self.id).encode())

    def example(self, number: int) -> "Example":
        """A good row as an example; its name is its id, else its number."""
        return Example(str(number if self.id is None else self.id), self.texts, number)


class Example(NamedTuple):
    """An example to encode: its name; its text, the two texts of a pair, or its words; and its row's number."""

    id: str
    texts: tuple[str, ...]
    row: int


def characters_of(example: Example) -> int:
    """The total length of an example's texts."""
    return sum(map(len, example.texts))


def columns_of(data: LabelledDataConfig) -> list[str]:
    """The columns to read: texts, labels, and id if configured."""
    return [*data.text_columns, *data.columns_of_labels, *([data.id_column] if data.id_column else [])]


def reading_of(data: LabelledDataConfig) -> Reading:
    """How to read the files of the data."""
    return Reading(data.source, data, name_columns=partial(_name_columns, data))


def _name_columns(data: LabelledDataConfig, file: str, first: list[str]) -> tuple[list[str], str]:
    """The names of a csv file's columns, and their origin: the first line, or the setting `columns`.

    With that setting, a first line is a header only if it has the text columns. A file with as many columns as the
    setting has besides the label columns has no labels, as test files.
    """
    if data.columns is None or set(data.text_columns) <= set(first):
        if twice := [column for column in columns_of(data) if first.count(column) > 1]:
            raise CorpusError(f"{file}: the first line has the column {twice[0]!r} twice; rename one of them")
        return first, FIRST_LINE
    named, labels = list(data.columns), data.columns_of_labels
    pairs = zip(first, named, strict=False)
    if like := [cell for cell, name in pairs if cell.strip().casefold() == name.casefold()]:
        raise CorpusError(
            f"{file}: line 1 looks like a header, because it has {like[0]!r}; remove `columns`, or spell text_columns "
            "as in that line"
        )
    if len(first) == len(named) - len(labels) and set(labels) <= set(named):
        without = f"`columns` without the label{'s'[: len(labels) > 1]}"
        return [name for name in named if name not in labels], without
    return named, "`columns`"


def read_rows(
    data: LabelledDataConfig, parts: Sequence[Part], most: int | None = None, watch: bool = False
) -> Iterator[Row]:
    """Every row, or the first `most` of each part; with `watch`, warn about a csv file with suspicious quotes."""
    how = reading_of(data)
    for part in parts:
        columns = look_at_columns(part, how).names
        records: Iterator[Record] = islice(read_part(part, how, columns_of(data)), most)
        if watch and data.source == "csv":
            records = watched(records, data.text_columns, data, part.name)
        for record in records:
            check_stop()
            if record.wrong is not None:
                yield Row(record.place, wrong=record.wrong)
                continue
            try:
                row = _read(data, record, columns)
            except ValueError as error:
                row = Row(record.place, wrong=RecordError(f"{record.place()}: {error}"))
            yield row


def _read(data: LabelledDataConfig, record: Record, columns: Sequence[str]) -> Row:
    """Parse a record with the `columns`. Raises `ValueError` for a value of the wrong kind."""
    values, column, by_words = record.values, data.text_columns[0], data.task == "tokens"
    if by_words:
        _require_words(column, values.get(column))
    texts = tuple(values[column] if by_words else (values.get(each) for each in data.text_columns))
    for each, text in zip(repeat(column) if by_words else data.text_columns, texts, strict=False):
        if not isinstance(text, str):
            found = "no text" if text is None else f"{type(text).__name__}, not text"
            hint = "; if each word has a label, set task to tokens" if isinstance(text, list) else ""
            raise ValueError(f"column {each!r} holds {found}{hint}")
        _require_utf8(each, text)
    if not any(map(str.strip, texts)):
        raise ValueError(f"column {column!r} is empty")
    label, name = None, None
    # The columns of jsonl are those of the first record, which may lack a label.
    if set(labels := data.columns_of_labels) <= set(columns) or any(values.get(each) is not None for each in labels):
        label = values.get(data.label_column)
        if data.label_columns is not None:
            label = tuple(map(values.get, data.label_columns))
        _require_utf8(data.columns_of_labels[0], label)
    if data.id_column is not None and data.id_column not in columns and values.get(data.id_column) is not None:
        raise ValueError(f"column {data.id_column!r} is not in the first record of this file; add it there too")
    if data.id_column is not None and data.id_column in columns:
        name = values.get(data.id_column)
        _require_utf8(data.id_column, name)
        if name is None or name == "":
            raise ValueError(f"column {data.id_column!r} is empty; remove id_column to number the examples instead")
    return Row(record.place, texts, TASKS[data.task].plain(label, len(texts), data), name)


def _require_words(column: str, value: Any) -> None:
    """Raise `ValueError` unless a row has a nonempty list of words."""
    if not isinstance(value, list | tuple):
        found = "nothing" if value is None else type(value).__name__
        raise ValueError(f"column {column!r} holds {found}, not a list of words")
    if not value:
        raise ValueError(f"column {column!r} holds an empty list instead of words")


def _require_utf8(column: str, value: Any) -> None:
    """Raise `ValueError` if a text, or one in a list, cannot be encoded in UTF-8."""
    for text in value if isinstance(value, list) else [value]:
        try:
            _ = isinstance(text, str) and text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"column {column!r} is not valid UTF-8 at character {error.start}; convert it to UTF-8"
            ) from error


class Scan(NamedTuple):
    """The result of a scan of a split: a few bytes per row, and each label once (lists of words' labels mostly differ).

    `codes`: the index of the row's label in the distinct `values`, or BAD; `digests`: of its texts; `held`: whether
    their hash selects it for validation; each of shape [rows]. `bad` are the BAD rows.
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
    """Scan all rows of a split, or `most` of each part; with `cut`, decide which are held out for validation.

    Raises `RecordError` for the first bad row that may not be skipped; a row with the id of an earlier one is bad.
    """
    codes, digests, held, ids = array("q"), array("Q"), array("b"), array("Q")
    values: dict[AnyLabel | None, int] = {}
    bad = bad_records(data, split)
    for row in read_rows(data, parts, most, watch=True):
        if row.wrong is not None:
            bad.add(row.wrong)
        text = row.text
        codes.append(BAD if row.wrong is not None else values.setdefault(row.label, len(values)))
        digests.append(_digest(text))
        held.append(cut and is_held_out(text, data.validation_fraction))
        ids.append(row.digest_of_id())
        advance(1)
    found = np.array(codes, dtype=np.int64)
    found[skip_repeats(data, parts, ids, bad, most)] = BAD
    return Scan(parts, found, np.array(digests, dtype=np.uint64), np.array(held, dtype=bool), list(values), bad)


def skip_repeats(
    data: LabelledDataConfig, parts: Sequence[Part], ids: Sequence[int], bad: BadRecords, most: int | None = None
) -> NDArray[np.bool_]:
    """Whether each row, or of `most` of each part, has the id of an earlier one, given the digests of the ids; adds
    these rows to `bad`, and raises `RecordError` if they may not be skipped.
    """
    repeated = _repeated(np.array(ids, dtype=np.uint64))
    if repeated.any():
        bad.add_all(int(repeated.sum()), _repeats(data, lambda: read_rows(data, parts, most), repeated))
    return repeated


def errors_of(
    data: LabelledDataConfig, parts: Sequence[Part], problems: Mapping[int, str], most: int | None = None
) -> Iterator[RecordError]:
    """The errors of rows by their numbers, of all rows or `most` of each part; reads the rows again."""
    for number, row in enumerate(read_rows(data, parts, most)):
        if number in problems:
            yield RecordError(f"{row.place()}: {problems[number]}")


def _repeated(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each row has the id of an earlier one."""
    repeated: NDArray[np.bool_] = ids != NAMELESS
    rows = np.flatnonzero(repeated)
    repeated[rows[np.unique(ids[rows], return_index=True)[1]]] = False
    return repeated


def _repeats(
    data: LabelledDataConfig, rows: Callable[[], Iterator[Row]], repeated: NDArray[np.bool_]
) -> Iterator[RecordError]:
    """The errors of rows with the ids of earlier ones; reads both again."""
    for row in compress(rows(), repeated):
        first = next(each for each in rows() if each.id is not None and str(each.id) == str(row.id))
        yield RecordError(
            f"{row.place()}: column {data.id_column!r}: {row.id!r} is also the id of {first.place()}; ids must differ"
        )


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
