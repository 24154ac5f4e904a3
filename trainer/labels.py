"""What the labels of a data set mean: ids of classes, or numbers.

Integers are ids already, unless the configured classes are integers themselves: then they are names, like all other texts.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainer.errors import CorpusError
from trainer.finetune_config import LabelledDataConfig

INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
UNLABELLED = -1
"""What stands in place of a label where there is none, by the convention of GLUE's test splits."""

Label = str | int | float
"""A label as the data has it."""


class Labels(NamedTuple):
    """The classes by id, and the id of each label as the data writes it; neither for regression."""

    classes: list[str] | None
    ids: dict[str | int, int]


def plain_label(value: object, data: LabelledDataConfig) -> Label | None:
    """A label as it is found in a row, or None if it is missing. Raises `ValueError` if it can be none at all."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and data.task == "classification" and value.is_integer():
        return int(value)  # how tables hold integers beside missing values
    if isinstance(value, str | int | float):
        return value
    raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a label")


def find_labels(data: LabelledDataConfig, values: Iterable[Label | None], named: list[str] | None, examples: int) -> Labels:
    """The meaning of the labels from the distinct ones in train; `named` are the data set's own class names.

    Raises `CorpusError` if they cannot be labels of at least two classes, or name more classes than there are `examples`.
    """
    if data.task == "regression":
        return Labels(None, {})
    where = f"data set {data.name!r}: column {data.label_column!r}"
    found = [value for value in values if value is not None]
    classes = data.classes or named
    ids: dict[str | int, int]
    if _are_integers(found, data):
        largest = max(int(value) for value in found if _is_integer(value))
        if classes is None and largest >= examples:
            raise CorpusError(
                f"{where} holds integers up to {largest:,} in {examples:,} examples, so they are not ids of classes; choose "
                "another label_column, name the classes, or set task to regression"
            )
        classes = classes or [str(number) for number in range(largest + 1)]
        as_names = data.classes is not None and named is None and all(INTEGER.fullmatch(name) for name in classes)
        ids = {int(name) if as_names else number: number for number, name in enumerate(classes)}
    else:
        classes = classes or sorted({value for value in found if isinstance(value, str)})
        ids = {name: number for number, name in enumerate(classes)}
    if len(classes) < 2:
        what = f"only the class {classes[0]!r}" if classes else "no label"
        raise CorpusError(f"{where} has {what} in train; at least two classes are needed: name them in `classes`")
    return Labels(classes, ids)


def read_label(labels: Labels, value: Label | None, optional: bool) -> int | float | None:
    """The class id or the number that a label means; None where it is missing and that is allowed.

    Raises `ValueError` with what was found and expected.
    """
    if labels.classes is None:
        return _read_number(value, optional)
    by_id = any(isinstance(key, int) for key in labels.ids)
    key = int(value) if by_id and value is not None and _is_integer(value) else value
    if isinstance(key, str | int) and key in labels.ids:
        return labels.ids[key]
    if optional and (value is None or value in (UNLABELLED, str(UNLABELLED))):
        return None
    found = "no label" if value is None else f"{value!r} is no class"
    if isinstance(value, float):
        found += " (for numbers, set task to regression)"
    raise ValueError(f"{found}; the classes are {_listed(labels)}")


def _read_number(value: Label | None, optional: bool) -> float | None:
    if value is None and optional:
        return None
    try:
        number = float(value) if value is not None else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("no number" if value is None else f"{value!r} is not a finite number")
    return number


def _are_integers(found: Sequence[Label], data: LabelledDataConfig) -> bool:
    """Whether the labels are integers, for the most part at least. Files of csv hold nothing but text."""
    if data.source != "csv":
        return any(isinstance(value, int) for value in found)
    if data.classes is not None:
        return any(map(_is_integer, found)) and not any(value in data.classes for value in found)
    return bool(found) and all(map(_is_integer, found))


def _is_integer(value: Label) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and bool(INTEGER.fullmatch(value)))


def _listed(labels: Labels) -> str:
    """The labels that mean a class, as the data writes them, the first dozen; with the class's name if it is another."""
    names = labels.classes or []
    shown = [repr(key) if str(key) == names[number] else f"{key!r} ({names[number]!r})" for key, number in labels.ids.items()]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
