"""Several labels an example: which classes apply to it, as the data says by a list, a text, or a column for each class."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.finetuning import LabelledDataConfig
from trainer.labelled.labels import UNLABELLED, Label, Labels, find_labels, plain_label, read_label

LabelList = tuple[Label, ...]
"""The labels of one example, each once."""

YES, NO = ("1", "True", "true", "1.0"), ("0", "False", "false", "0.0")


def plain_labels(value: Any, data: LabelledDataConfig) -> LabelList | None:
    """The labels of a row, or None if they are missing. Raises `ValueError` if it can be none at all."""
    if data.label_columns is not None:
        return _of_columns(value, data.label_columns)
    if isinstance(value, str) and data.source == "csv":
        value = [part.strip() for part in value.split(data.label_separator or ",") if part.strip()]
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a list of labels")
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {data.label_column!r} holds a list with an empty label")
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _of_columns(values: Sequence[Any] | None, columns: Sequence[str]) -> LabelList | None:
    """The columns that say yes."""
    if values is None or all(value is None or value == "" for value in values):
        return None
    for column, value in zip(columns, values, strict=True):
        if str(value) not in (*YES, *NO):
            raise ValueError(f"column {column!r} holds {value!r}, not 0 or 1")
    return tuple(column for column, value in zip(columns, values, strict=True) if str(value) in YES)


def find_classes(
    data: LabelledDataConfig, values: Iterable[LabelList | None], named: list[str] | None, examples: int
) -> Labels:
    """The meaning of the labels, from the distinct lists in train. Raises `CorpusError` as `find_labels` does."""
    if data.label_columns is not None:
        return Labels(data.label_columns, {name: number for number, name in enumerate(data.label_columns)})
    distinct = dict.fromkeys(label for value in values if value is not None for label in value)
    return find_labels(data, distinct, named, examples)


def read_list(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int8]:
    """1 for each class that applies, of shape [C]; -1 for all where labels are missing and that is allowed.

    Raises `ValueError` with what was found and expected.
    """
    assert labels.classes is not None
    if value is None:
        if optional:
            return np.full(len(labels.classes), UNLABELLED, dtype=np.int8)
        raise ValueError("no list of labels")
    applies = np.zeros(len(labels.classes), dtype=np.int8)
    applies[[int(read_label(labels, each, optional=False) or 0) for each in value]] = 1
    return applies
