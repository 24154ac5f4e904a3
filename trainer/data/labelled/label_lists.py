"""Several labels in an example: all that apply, or one for each word."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import CorpusError
from trainer.config.labelled import LabelledDataConfig
from trainer.data.encoded import IGNORED
from trainer.data.labelled.labels import UNLABELLED, Label, Labels, find_labels, plain_label, read_label

OTHER_SEPARATOR = re.compile("[;|\t\u060c\u061b\u3001\uff0c\uff1b\uff5c]")
"""Possible separators of labels if none is configured, with those of Arabic, Chinese and Japanese."""

YES, NO = ("1", "true"), ("0", "false")

LabelList = tuple[Label, ...]
"""The labels of one example: the distinct ones that apply, or one for each of its words in order."""


def plain_labels(value: Any, data: LabelledDataConfig) -> LabelList | None:
    """The labels of a row, or None if they are missing. Raises `ValueError` if they cannot be labels."""
    if data.label_columns is not None:
        return _of_columns(value, data.label_columns)
    if isinstance(value, str) and data.source == "csv":
        value = _divided(value, data)
    if value is None:
        return None
    if not isinstance(value, bool) and value == UNLABELLED:  # instead of a list
        return (UNLABELLED,)
    if not isinstance(value, list | tuple):
        raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a list of labels")
    if any(isinstance(each, bool) for each in value):
        raise ValueError(
            f"column {data.label_column!r} holds a list of true and false, but a list must have the labels that apply; "
            "if they stand for the classes in order, give each class a column (label_columns)"
        )
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {data.label_column!r} holds a list with an empty label")
    distinct = tuple(dict.fromkeys(each for each in found if each is not None))
    if len(distinct) < len(found) and {str(each) for each in distinct} <= {"0", "1"}:
        raise ValueError(
            f"column {data.label_column!r} holds {len(found)} labels that are 0 or 1, but a list must have each label "
            "that applies once; if they stand for the classes in order, give each class a column (label_columns)"
        )
    return distinct


def _divided(text: str, data: LabelledDataConfig) -> list[str]:
    """The labels in a text. Raises `ValueError` if it seems to use another separator."""
    where = f"column {data.label_column!r} holds {text!r}"
    if text.lstrip().startswith("["):
        raise ValueError(f"{where}, a list written as text; write only the labels, separated by label_separator")
    if data.label_separator is None and data.classes is None and (other := OTHER_SEPARATOR.search(text)):
        raise ValueError(
            f"{where}; set label_separator to {other[0]!r} if that separates labels, or to ',' if it is part of a label"
        )
    return [part.strip() for part in text.split(data.label_separator or ",") if part.strip()]


def _of_columns(values: Sequence[Any] | None, columns: Sequence[str]) -> LabelList | None:
    """The columns with a true value; None if all are empty, or -1, as in test data with withheld labels."""
    words = ["" if value is None else str(value).strip().lower().removesuffix(".0") for value in values or ()]
    if set(words) in (set(), {""}, {"nan"}, {str(UNLABELLED)}):
        return None
    for column, value, word in zip(columns, values or (), words, strict=True):
        if word not in (*YES, *NO):
            raise ValueError(f"column {column!r} holds {value!r}, not 0 or 1")
    return tuple(column for column, word in zip(columns, words, strict=True) if word in YES)


def find_listed(
    data: LabelledDataConfig, values: Iterable[LabelList | None], named: list[str] | None, examples: int
) -> Labels:
    """The same as `find_labels` for values that are lists of labels."""
    if data.label_columns is not None:
        return Labels(data.label_columns, {name: number for number, name in enumerate(data.label_columns)}, {})
    given = [value for value in values if value is not None]
    if data.task == "multi-label" and given and all(sorted(map(str, value)) == ["0", "1"] for value in given):
        raise CorpusError(
            f"data set {data.name!r}: column {data.label_column!r} holds 0 and 1 in each list, but a list must have "
            "the labels that apply, which would be both everywhere; if they stand for the classes in order, give each "
            "class a column (label_columns)"
        )
    distinct = dict.fromkeys(label for value in given for label in value)
    return find_labels(data, distinct, named, examples)


def _read_given(
    labels: Labels, value: LabelList | None, optional: bool, withheld: Iterable[int] = (UNLABELLED,)
) -> LabelList | None:
    """The labels of an example; None if they are missing and `optional`.

    They also count as missing if all are marks of withheld labels and not classes. Raises `ValueError` for missing
    labels that are not optional.
    """
    given = {str(each) for each in value or ()}
    if optional and given and given <= set(map(str, withheld)) and not given & set(map(str, labels.ids)):
        return None
    if value is None and not optional:
        raise ValueError("there are no labels")
    return value


def read_list(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int8] | None:
    """1 for each class that applies, of shape [C]; None if labels are missing and `optional`.

    Raises `ValueError` with what was found and expected.
    """
    assert labels.classes is not None
    if (given := _read_given(labels, value, optional)) is None:
        return None
    applies = np.zeros(len(labels.classes), dtype=np.int8)
    applies[[int(read_label(labels, each, optional=False) or 0) for each in given]] = 1
    return applies


def plain_tags(value: Any, words: int, data: LabelledDataConfig) -> LabelList | None:
    """The labels of a row's words in order, or None if missing. Raises `ValueError` if they cannot be labels."""
    if value is None:
        return None
    column = data.label_column
    if not isinstance(value, list | tuple):
        raise ValueError(f"column {column!r} holds {type(value).__name__}, not a list with a label for each word")
    if len(value) != words:
        raise ValueError(
            f"column {data.text_columns[0]!r} holds {words} words, but column {column!r} holds {len(value)} labels; "
            "each word needs one label"
        )
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {column!r}: word {found.index(None) + 1} of {words} has an empty label")
    # Each row has its own string objects, although there are few distinct labels.
    return tuple(sys.intern(each) if isinstance(each, str) else each for each in found if each is not None)


def read_tags(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int32] | None:
    """The id of each word's class; None if labels are missing and `optional`.

    Raises `ValueError` with what was found and expected.
    """
    if (given := _read_given(labels, value, optional, (UNLABELLED, IGNORED))) is None:
        return None
    ids = np.empty(len(given), dtype=np.int32)
    for number, each in enumerate(given):
        try:
            ids[number] = int(read_label(labels, each, optional=False) or 0)
        except ValueError as error:
            raise ValueError(f"word {number + 1} of {len(given)}: {error}") from error
    return ids


def as_column(found: Sequence[NDArray[np.int32]]) -> NDArray[Any]:
    """Arrays of different lengths as an array of arrays, of shape [N]."""
    column = np.empty(len(found), dtype=object)
    for number, each in enumerate(found):
        column[number] = each
    return column


def all_words(labels: NDArray[Any]) -> NDArray[np.int32]:
    """The ids of all words, from labels by example."""
    return np.concatenate([np.empty(0, dtype=np.int32), *labels])
