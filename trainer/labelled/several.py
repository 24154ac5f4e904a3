"""Several labels an example: which classes apply to it, as the data says by a list, a text, or a column for each class."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.labelled import LabelledDataConfig
from trainer.labelled.labels import UNLABELLED, Label, Labels, are_withheld, find_labels, plain_label, read_label

OTHER_SEPARATOR = re.compile(r"[;|\t]")
"""What labels may be divided by where it is not said."""

YES, NO = ("1", "true"), ("0", "false")

LabelList = tuple[Label, ...]
"""The labels of one example: those that apply, each once, or one for each of its words, in their order."""


def plain_labels(value: Any, data: LabelledDataConfig) -> LabelList | None:
    """The labels of a row, or None if they are missing. Raises `ValueError` if it can be none at all."""
    if data.label_columns is not None:
        return _of_columns(value, data.label_columns)
    if isinstance(value, str) and data.source == "csv":
        value = _divided(value, data)
    if value is None:
        return None
    if not isinstance(value, bool) and value == UNLABELLED:  # what stands where others have a list
        return (UNLABELLED,)
    if not isinstance(value, list | tuple):
        raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a list of labels")
    if any(isinstance(each, bool) for each in value):
        raise ValueError(
            f"column {data.label_column!r} holds a list of true and false, but a list names the labels that apply; if they "
            "stand for the classes in turn, give each a column of its own (label_columns)"
        )
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {data.label_column!r} holds a list with an empty label")
    distinct = tuple(dict.fromkeys(each for each in found if each is not None))
    if len(distinct) < len(found) and {str(each) for each in distinct} <= {"0", "1"}:
        raise ValueError(
            f"column {data.label_column!r} holds {len(found)} labels that are 0 or 1, but a list names each label that applies "
            "once; if they stand for the classes in turn, give each a column of its own (label_columns)"
        )
    return distinct


def _divided(text: str, data: LabelledDataConfig) -> list[str]:
    """The labels that a text names. Raises `ValueError` for one that seems to be divided in another way."""
    where = f"column {data.label_column!r} holds {text!r}"
    if text.lstrip().startswith("["):
        raise ValueError(f"{where}, a list written as text; write its labels alone, divided by label_separator")
    if data.label_separator is None and data.classes is None and (other := OTHER_SEPARATOR.search(text)):
        raise ValueError(f"{where}; set label_separator to {other[0]!r} if that divides labels, to ',' if it is a part of one")
    return [part.strip() for part in text.split(data.label_separator or ",") if part.strip()]


def _of_columns(values: Sequence[Any] | None, columns: Sequence[str]) -> LabelList | None:
    """The columns that say yes; None if all are empty, or -1, by which test data says nothing."""
    said = ["" if value is None else str(value).strip().lower().removesuffix(".0") for value in values or ()]
    if set(said) in (set(), {""}, {"nan"}, {str(UNLABELLED)}):
        return None
    for column, value, word in zip(columns, values or (), said, strict=True):
        if word not in (*YES, *NO):
            raise ValueError(f"column {column!r} holds {value!r}, not 0 or 1")
    return tuple(column for column, word in zip(columns, said, strict=True) if word in YES)


def find_listed(data: LabelledDataConfig, values: Iterable[LabelList | None], named: list[str] | None, examples: int) -> Labels:
    """What `find_labels` says where each of the values that train has is a list of labels."""
    if data.label_columns is not None:
        return Labels(data.label_columns, {name: number for number, name in enumerate(data.label_columns)})
    distinct = dict.fromkeys(label for value in values if value is not None for label in value)
    return find_labels(data, distinct, named, examples)


def read_list(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int8]:
    """1 for each class that applies, of shape [C]; -1 for all where labels are missing and that is allowed.

    Raises `ValueError` with what was found and expected.
    """
    assert labels.classes is not None
    if optional and value is not None and are_withheld(labels, value, (UNLABELLED,)):
        value = None
    if value is None:
        if optional:
            return np.full(len(labels.classes), UNLABELLED, dtype=np.int8)
        raise ValueError("no labels are given")
    applies = np.zeros(len(labels.classes), dtype=np.int8)
    applies[[int(read_label(labels, each, optional=False) or 0) for each in value]] = 1
    return applies
