"""The labels of a data set: the id of a class, or a number; label_lists.py reads several in an example.

Integers are ids, unless the configured classes are integers: then they are names, like all texts. A text among integers
is a class's name if there is such a class, else an integer unless it begins with 0, as 01. Numbers written with a
fraction are not classes, unless `classes` contains them.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from trainer.common.display import some
from trainer.common.errors import CorpusError
from trainer.config.labelled import LabelledDataConfig
from trainer.data.tables import read_number

DIGITS = re.compile(r"[+-]?[0-9]{1,18}")
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
"""A text that is read as an integer; digits that begin with 0, as in codes such as 01, are a name."""
FRACTION = re.compile(r"\s*[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?\s*")
UNLABELLED = -1
"""Represents a missing label, as in GLUE's test splits."""

REGRESSION = "set task to regression"

Label = str | int | float
"""A label in the data's form."""


class Labels(NamedTuple):
    """The classes by id, and the id of each label in the data's form; None and empty for regression.

    If labels are integers, `names` has the id of each class's name; otherwise it is empty.
    """

    classes: list[str] | None
    ids: dict[str | int, int]
    names: dict[str, int]


def plain_label(value: object, data: LabelledDataConfig) -> Label | None:
    """The label in a row, or None if it is missing. Raises `ValueError` if it cannot be a label.

    A boolean, or a whole number in a table, becomes the class of that spelling (true, 1.0) if there is one, else an
    integer.
    """
    if (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    ):
        return None
    if isinstance(value, Decimal):  # a number in a table from a database
        value = float(value)
    if isinstance(value, bool) or (isinstance(value, float) and data.task != "regression" and value.is_integer()):
        spelt = (name for name in data.classes or () if name.casefold() == str(value).casefold())
        return next(spelt, int(value))  # tables store integers beside missing values as floats
    if isinstance(value, str | int | float):
        return value
    hint = ""
    if isinstance(value, list) and data.task != "tokens":
        hint = "; for several labels per example, set task to multi-label; for a label per word, to tokens"
    raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a label{hint}")


def find_labels(
    data: LabelledDataConfig, values: Iterable[Label | None], named: list[str] | None, examples: int
) -> Labels:
    """The labels' ids, from the distinct labels in train; `named` are the data set's own class names.

    Raises `CorpusError` if they cannot be labels of at least two classes, or imply more classes than `examples`.
    """
    if data.task == "regression":
        return Labels(None, {}, {})
    where = f"data set {data.name!r}: column {data.label_column!r}"
    classes = data.classes or named
    found = refuse_fractions(data, values, named)
    ids: dict[str | int, int]
    if _are_integers(found, data):
        largest = max(int(value) for value in found if _is_integer(value))
        if classes is None and largest >= examples:
            raise CorpusError(
                f"{where} holds integers up to {largest:,} in {examples:,} examples, so they cannot be class ids; "
                "choose another label_column, list the classes, or set task to regression"
            )
        classes = classes or [str(number) for number in range(largest + 1)]
        as_names = data.classes is not None and named is None and all(DIGITS.fullmatch(name) for name in classes)
        ids = {int(name) if as_names else number: number for number, name in enumerate(classes)}
        names = {name: number for number, name in enumerate(classes)}
    else:
        classes, names = classes or _name_classes(where, found), {}
        ids = {name: number for number, name in enumerate(classes)}
    if len(classes) < 2:
        _refuse_mixed(where, found)
        what = f"only the class {classes[0]!r}" if classes else "no label"
        raise CorpusError(f"{where} has {what} in train; at least two classes are needed: list them in `classes`")
    return Labels(classes, ids, names)


def refuse_fractions(data: LabelledDataConfig, values: Iterable[Label | None], named: list[str] | None) -> list[Label]:
    """The values that can be classes. Raises `CorpusError` if all of them are numbers with a fraction."""
    every = [value for value in values if value is not None]
    found = [value for value in every if not _is_fraction(value, data.classes or named)]
    if every and not found:
        raise CorpusError(
            f"data set {data.name!r}: column {data.label_column!r} holds numbers with a fraction, such as "
            f"{every[0]!r}, which cannot be classes: {REGRESSION}, or list them in `classes` if they are names"
        )
    return found


def _name_classes(where: str, found: Sequence[Label]) -> list[str]:
    """The distinct texts as names. Raises `CorpusError` if some of them look like misspellings of others."""
    names = sorted({value for value in found if isinstance(value, str)})
    _refuse_mixed(where, names)
    alike: dict[str, str] = {}
    for name in names:
        digits = DIGITS.fullmatch(name)
        form = str(int(name)) if digits else unicodedata.normalize("NFC", name).strip().casefold()
        if (other := alike.setdefault(form, name)) != name:
            how = "leading zeros" if digits else "case, blanks or their form in Unicode"
            raise CorpusError(
                f"{where} holds {other!r} and {name!r}, which differ only in {how}: correct them, or list all classes "
                "in `classes`"
            )
    return names


def _refuse_mixed(where: str, found: Sequence[Label]) -> None:
    """Raise `CorpusError` if some labels are integers, or written in digits, and others are not."""
    words = sorted({value for value in found if isinstance(value, str) and not DIGITS.fullmatch(value)})
    numbers = sorted({value for value in found if isinstance(value, str | int)}.difference(words), key=str)
    if numbers and words:
        integers, texts = (some(map(repr, each)) for each in (numbers, words))
        raise CorpusError(
            f"{where} holds integers ({integers}) and other texts ({texts}): correct them, or list all classes in "
            "`classes`"
        )


def read_label(labels: Labels, value: Label | None, optional: bool) -> int | float | None:
    """The class id or the number of a label; None if it is missing and `optional`.

    Raises `ValueError` with what was found and expected.
    """
    if labels.classes is None:
        return _read_number(value, optional)
    if isinstance(value, str) and (number := labels.names.get(value)) is not None:
        if _is_integer(value) and (other := labels.ids.get(int(value), number)) != number:
            raise ValueError(
                f"the text {value!r} is the name of the class with the id {number}, and the id of the class "
                f"{labels.classes[other]!r}, while other labels are integers: write all of them as integers, or all as "
                "names"
            )
        return number
    key = int(value) if labels.names and value is not None and _is_integer(value) else value
    if isinstance(key, str | int) and key in labels.ids:
        return labels.ids[key]
    if optional and (value is None or value in (UNLABELLED, str(UNLABELLED))):
        return None
    found = "no label" if value is None else f"{value!r} is not a class"
    if value is not None and _is_fraction(value, labels.classes):
        found += f" (for numbers, {REGRESSION})"
    raise ValueError(f"{found}; the classes are {_listed(labels)}")


def _read_number(value: Label | None, optional: bool) -> float | None:
    if value is None and optional:
        return None
    try:
        number = read_number(value) if value is not None else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("no number" if value is None else f"{value!r} is not a finite number")
    return number


def _are_integers(found: Sequence[Label], data: LabelledDataConfig) -> bool:
    """Whether the labels are integers, at least most of them. csv files contain only text."""
    if data.source != "csv":
        return any(isinstance(value, int) for value in found)
    if data.classes is not None:
        return any(map(_is_integer, found)) and not any(value in data.classes for value in found)
    return bool(found) and all(map(_is_integer, found))


def _is_fraction(value: Label, classes: Sequence[str] | None) -> bool:
    """Whether a label is a number written with a fraction, such as 2.5 or the text 0.0, and not a class's name."""
    if isinstance(value, str):
        return bool(FRACTION.fullmatch(value)) and value not in (classes or ())
    return isinstance(value, float)


def _is_integer(value: Label) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and bool(INTEGER.fullmatch(value)))


def _listed(labels: Labels) -> str:
    """The valid labels in the data's form, up to twelve, each with the class's name if that differs."""
    names = labels.classes or []
    shown = [
        repr(key) if str(key) == names[number] else f"{key!r} ({names[number]!r})" for key, number in labels.ids.items()
    ]
    return some(shown, 12)
