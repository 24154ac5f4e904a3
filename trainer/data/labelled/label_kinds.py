"""How the labels of each task are read, found, converted and gathered."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.label_lists import (
    LabelList,
    as_column,
    find_listed,
    plain_labels,
    plain_tags,
    read_list,
    read_tags,
)
from trainer.data.labelled.labels import UNLABELLED, Label, Labels, find_labels, plain_label, read_label

AnyLabel = Label | LabelList
"""A row's label or labels."""


class LabelKind(NamedTuple):
    """The functions for the labels of a task.

    `plain` returns the label of a row's value, given the number of the example's texts or words; None if missing.
    `find` finds the classes from the values in train. `read` converts a label to its id or number, `missing` returns
    what represents a missing one, and `gather` builds an array of them. `plain` and `read` raise `ValueError`, `find`
    raises `CorpusError`.
    """

    plain: Callable[[Any, int, LabelledDataConfig], AnyLabel | None]
    find: Callable[[LabelledDataConfig, Iterable[Any], list[str] | None, int], Labels]
    read: Callable[[Labels, Any, bool], Any]
    missing: Callable[[Labels], Any]
    gather: Callable[[list[Any]], NDArray[Any]]


TASKS = {
    "classification": LabelKind(
        lambda value, texts, data: plain_label(value, data), find_labels, read_label, lambda labels: UNLABELLED,
        lambda found: np.array(found, dtype=np.int64),
    ),
    "regression": LabelKind(
        lambda value, texts, data: plain_label(value, data), find_labels, read_label, lambda labels: np.nan,
        lambda found: np.array(found, dtype=np.float64),
    ),
    "multi-label": LabelKind(
        lambda value, texts, data: plain_labels(value, data), find_listed, read_list,
        lambda labels: np.full(len(labels.classes or ()), UNLABELLED), lambda found: np.array(found, dtype=np.int8),
    ),
    "tokens": LabelKind(plain_tags, find_listed, read_tags, lambda labels: np.empty(0, dtype=np.int32), as_column),
}  # fmt: skip


def unlabelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each example lacks a label, of shape [N]."""
    if labels.dtype == object:
        return np.array([not len(each) for each in labels], dtype=np.bool_)
    if labels.ndim > 1:
        labels = labels[:, 0]
    missing: NDArray[np.bool_] = np.isnan(labels) if labels.dtype.kind == "f" else labels < 0
    return missing
