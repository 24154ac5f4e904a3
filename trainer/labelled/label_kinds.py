"""How labels are read, by task: as a row holds them, what they mean, and as arrays."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.config.labelled import LabelledDataConfig
from trainer.labelled.labels import UNLABELLED, Label, Labels, find_labels, plain_label, read_label
from trainer.labelled.several import LabelList, find_listed, plain_labels, read_list
from trainer.labelled.words import as_column, plain_tags, read_tags

AnyLabel = Label | LabelList
"""What a row says of its example: a label, or several."""


class LabelKind(NamedTuple):
    """What is done with the labels of a task.

    `plain` makes a label out of a row's value, of which the example has so many texts, or words; None if it is missing. `find`
    tells the classes by the values of train. `read` says what a label means, `missing` what stands where there is none, and
    `gather` makes an array of such meanings. The first and the third raise `ValueError`, the second `CorpusError`.
    """

    plain: Callable[[Any, int, LabelledDataConfig], AnyLabel | None]
    find: Callable[[LabelledDataConfig, Iterable[Any], list[str] | None, int], Labels]
    read: Callable[[Labels, Any, bool], Any]
    missing: Callable[[Labels], Any]
    gather: Callable[[list[Any]], NDArray[Any]]


def _plain_label(value: Any, texts: int, data: LabelledDataConfig) -> AnyLabel | None:
    return plain_label(value, data)


def _plain_labels(value: Any, texts: int, data: LabelledDataConfig) -> AnyLabel | None:
    return plain_labels(value, data)


KINDS = {
    "classification": LabelKind(
        _plain_label, find_labels, read_label, lambda labels: UNLABELLED, lambda found: np.array(found, dtype=np.int64)
    ),
    "regression": LabelKind(
        _plain_label, find_labels, read_label, lambda labels: np.nan, lambda found: np.array(found, dtype=np.float64)
    ),
    "multi-label": LabelKind(
        _plain_labels, find_listed, read_list, lambda labels: np.full(len(labels.classes or ()), UNLABELLED),
        lambda found: np.array(found, dtype=np.int8),
    ),
    "tokens": LabelKind(plain_tags, find_listed, read_tags, lambda labels: np.empty(0, dtype=np.int32), as_column),
}  # fmt: skip
