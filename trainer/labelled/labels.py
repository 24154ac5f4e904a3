"""What the labels of a data set mean: ids of classes, or numbers.

Integers are ids already, unless the configured classes are integers themselves: then they are names, like all other texts.
Numbers that are written with a fraction are no classes, unless `classes` names them.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainer.common.errors import CorpusError
from trainer.config.labelled import LabelledDataConfig

INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
FRACTION = re.compile(r"\s*[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?\s*")
UNLABELLED = -1
"""What stands in place of a label where there is none, by the convention of GLUE's test splits."""

REGRESSION = "set task to regression"

Label = str | int | float
"""A label as the data has it."""


class Labels(NamedTuple):
    """The classes by id, and the id of each label as the data writes it; neither for regression."""

    classes: list[str] | None
    ids: dict[str | int, int]


def plain_label(value: object, data: LabelledDataConfig) -> Label | None:
    """A label as it is found in a row, or None if it is missing. Raises `ValueError` if it can be none at all."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and data.task != "regression" and value.is_integer():
        return int(value)  # how tables hold integers beside missing values
    if isinstance(value, str | int | float):
        return value
    hint = ""
    if isinstance(value, list) and data.task != "tokens":
        hint = "; for several labels an example, set task to multi-label, for a label for each word to tokens"
    raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a label{hint}")


def find_labels(data: LabelledDataConfig, values: Iterable[Label | None], named: list[str] | None, examples: int) -> Labels:
    """The meaning of the labels from the distinct ones in train; `named` are the data set's own class names.

    Raises `CorpusError` if they cannot be labels of at least two classes, or name more classes than there are `examples`.
    """
    if data.task == "regression":
        return Labels(None, {})
    where = f"data set {data.name!r}: column {data.label_column!r}"
    classes = data.classes or named
    found = refuse_fractions(data, values, named)
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
        classes = classes or _name_classes(where, found)
        ids = {name: number for number, name in enumerate(classes)}
    if len(classes) < 2:
        _refuse_mixed(where, found)
        what = f"only the class {classes[0]!r}" if classes else "no label"
        raise CorpusError(f"{where} has {what} in train; at least two classes are needed: name them in `classes`")
    return Labels(classes, ids)


def refuse_fractions(data: LabelledDataConfig, values: Iterable[Label | None], named: list[str] | None) -> list[Label]:
    """Those of the values that can be classes. Raises `CorpusError` if all of them are numbers with a fraction."""
    every = [value for value in values if value is not None]
    found = [value for value in every if not _is_fraction(value, data.classes or named)]
    if every and not found:
        raise CorpusError(
            f"data set {data.name!r}: column {data.label_column!r} holds numbers with a fraction, such as {every[0]!r}, which "
            f"are no classes: {REGRESSION}, or name them in `classes` if they are names"
        )
    return found


def _name_classes(where: str, found: Sequence[Label]) -> list[str]:
    """The distinct texts as names. Raises `CorpusError` if some of them look like slips of the pen for others."""
    names = sorted({value for value in found if isinstance(value, str)})
    _refuse_mixed(where, names)
    alike: dict[str, str] = {}
    for name in names:
        if (other := alike.setdefault(name.strip().casefold(), name)) != name:
            raise CorpusError(
                f"{where} holds {other!r} and {name!r}, which differ by case or blanks alone: correct them, or name all "
                "classes in `classes`"
            )
    return names


def _refuse_mixed(where: str, found: Sequence[Label]) -> None:
    """Raise `CorpusError` if some labels are integers, or are written as such, and others are not."""
    numbers = sorted({value for value in found if _is_integer(value)}, key=str)
    words = sorted({value for value in found if isinstance(value, str) and not _is_integer(value)})
    if numbers and words:
        raise CorpusError(
            f"{where} holds integers ({_few(numbers)}) and other texts ({_few(words)}): correct them, or name all classes in "
            "`classes`"
        )


def are_withheld(labels: Labels, value: Iterable[Label], marks: Iterable[int]) -> bool:
    """Whether some labels of one example are nothing but marks for those that test data withholds, and no classes."""
    said = {str(each) for each in value}
    return bool(said) and said <= set(map(str, marks)) and not said & set(map(str, labels.ids))


def _few(names: Sequence[Label]) -> str:
    return ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")


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
    if value is not None and _is_fraction(value, labels.classes):
        found += f" (for numbers, {REGRESSION})"
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


def _is_fraction(value: Label, classes: Sequence[str] | None) -> bool:
    """Whether a label is a number written with a fraction, such as 2.5 or the text 0.0, and no class's name."""
    if isinstance(value, str):
        return bool(FRACTION.fullmatch(value)) and value not in (classes or ())
    return isinstance(value, float)


def _is_integer(value: Label) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and bool(INTEGER.fullmatch(value)))


def _listed(labels: Labels) -> str:
    """The labels that mean a class, as the data writes them, the first dozen; with the class's name if it is another."""
    names = labels.classes or []
    shown = [repr(key) if str(key) == names[number] else f"{key!r} ({names[number]!r})" for key, number in labels.ids.items()]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
