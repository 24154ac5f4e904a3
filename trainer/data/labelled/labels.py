"""What the labels of a data set mean, by task: the id of a class, several, one for each word, or a number.

Integers are ids already, unless the configured classes are integers themselves: then they are names, like all other
texts. Numbers that are written with a fraction are no classes, unless `classes` names them.
"""

import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import CorpusError
from trainer.config.labelled import LabelledDataConfig
from trainer.data.encoded import IGNORED

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
    """A label as it is found in a row, or None if it is missing. Raises `ValueError` if it can be none at all.

    A truth value, and a whole number of a table, is a class that is so spelt (true, 1.0), else an integer.
    """
    if (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    ):
        return None
    if isinstance(value, bool) or (isinstance(value, float) and data.task != "regression" and value.is_integer()):
        spelt = (name for name in data.classes or () if name.casefold() == str(value).casefold())
        return next(spelt, int(value))  # a table holds integers beside missing values as such numbers
    if isinstance(value, str | int | float):
        return value
    hint = ""
    if isinstance(value, list) and data.task != "tokens":
        hint = "; for several labels an example, set task to multi-label, for a label for each word to tokens"
    raise ValueError(f"column {data.label_column!r} holds {type(value).__name__}, not a label{hint}")


def find_labels(
    data: LabelledDataConfig, values: Iterable[Label | None], named: list[str] | None, examples: int
) -> Labels:
    """The meaning of the labels from the distinct ones in train; `named` are the data set's own class names.

    Raises `CorpusError` if they cannot be labels of at least two classes, or name more classes than there are
    `examples`.
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
                f"{where} holds integers up to {largest:,} in {examples:,} examples, so they are not ids of classes; "
                "choose another label_column, name the classes, or set task to regression"
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
            f"data set {data.name!r}: column {data.label_column!r} holds numbers with a fraction, such as "
            f"{every[0]!r}, which are no classes: {REGRESSION}, or name them in `classes` if they are names"
        )
    return found


def _name_classes(where: str, found: Sequence[Label]) -> list[str]:
    """The distinct texts as names. Raises `CorpusError` if some of them look like slips of the pen for others."""
    names = sorted({value for value in found if isinstance(value, str)})
    _refuse_mixed(where, names)
    alike: dict[str, str] = {}
    for name in names:
        if (other := alike.setdefault(unicodedata.normalize("NFC", name).strip().casefold(), name)) != name:
            raise CorpusError(
                f"{where} holds {other!r} and {name!r}, which differ by case, blanks or their form in Unicode alone: "
                "correct them, or name all classes in `classes`"
            )
    return names


def _refuse_mixed(where: str, found: Sequence[Label]) -> None:
    """Raise `CorpusError` if some labels are integers, or are written as such, and others are not."""
    numbers = sorted({value for value in found if _is_integer(value)}, key=str)
    words = sorted({value for value in found if isinstance(value, str) and not _is_integer(value)})
    if numbers and words:
        raise CorpusError(
            f"{where} holds integers ({_few(numbers)}) and other texts ({_few(words)}): correct them, or name all "
            "classes in `classes`"
        )


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
    """The labels that mean a class, as the data writes them, the first dozen; with the class's name if it is
    another.
    """
    names = labels.classes or []
    shown = [
        repr(key) if str(key) == names[number] else f"{key!r} ({names[number]!r})" for key, number in labels.ids.items()
    ]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


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
            f"column {data.label_column!r} holds a list of true and false, but a list names the labels that apply; if "
            "they stand for the classes in turn, give each a column of its own (label_columns)"
        )
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {data.label_column!r} holds a list with an empty label")
    distinct = tuple(dict.fromkeys(each for each in found if each is not None))
    if len(distinct) < len(found) and {str(each) for each in distinct} <= {"0", "1"}:
        raise ValueError(
            f"column {data.label_column!r} holds {len(found)} labels that are 0 or 1, but a list names each label that "
            "applies once; if they stand for the classes in turn, give each a column of its own (label_columns)"
        )
    return distinct


def _divided(text: str, data: LabelledDataConfig) -> list[str]:
    """The labels that a text names. Raises `ValueError` for one that seems to be divided in another way."""
    where = f"column {data.label_column!r} holds {text!r}"
    if text.lstrip().startswith("["):
        raise ValueError(f"{where}, a list written as text; write its labels alone, divided by label_separator")
    if data.label_separator is None and data.classes is None and (other := OTHER_SEPARATOR.search(text)):
        raise ValueError(
            f"{where}; set label_separator to {other[0]!r} if that divides labels, to ',' if it is a part of one"
        )
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


def find_listed(
    data: LabelledDataConfig, values: Iterable[LabelList | None], named: list[str] | None, examples: int
) -> Labels:
    """What `find_labels` says where each of the values that train has is a list of labels."""
    if data.label_columns is not None:
        return Labels(data.label_columns, {name: number for number, name in enumerate(data.label_columns)})
    given = [value for value in values if value is not None]
    if data.task == "multi-label" and given and all(sorted(map(str, value)) == ["0", "1"] for value in given):
        raise CorpusError(
            f"data set {data.name!r}: column {data.label_column!r} holds 0 and 1 in each list, but a list names the "
            "labels that apply, which would be both everywhere; if they stand for the classes in turn, give each a "
            "column of its own (label_columns)"
        )
    distinct = dict.fromkeys(label for value in given for label in value)
    return find_labels(data, distinct, named, examples)


def _read_given(
    labels: Labels, value: LabelList | None, optional: bool, withheld: Iterable[int] = (UNLABELLED,)
) -> LabelList | None:
    """The labels of an example; None where they are missing and that is allowed.

    They are missing, too, if they are nothing but marks for those that test data withholds, and no classes. Raises
    `ValueError` where there are none and that is not allowed.
    """
    said = {str(each) for each in value or ()}
    if optional and said and said <= set(map(str, withheld)) and not said & set(map(str, labels.ids)):
        return None
    if value is None and not optional:
        raise ValueError("no labels are given")
    return value


def read_list(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int8] | None:
    """1 for each class that applies, of shape [C]; None where labels are missing and that is allowed.

    Raises `ValueError` with what was found and expected.
    """
    assert labels.classes is not None
    if (given := _read_given(labels, value, optional)) is None:
        return None
    applies = np.zeros(len(labels.classes), dtype=np.int8)
    applies[[int(read_label(labels, each, optional=False) or 0) for each in given]] = 1
    return applies


def plain_tags(value: Any, words: int, data: LabelledDataConfig) -> LabelList | None:
    """The labels of a row's words in their order, or None if they are missing. Raises `ValueError` if they can be
    none.
    """
    if value is None:
        return None
    column = data.label_column
    if not isinstance(value, list | tuple):
        raise ValueError(f"column {column!r} holds {type(value).__name__}, not a list with a label for each word")
    if len(value) != words:
        raise ValueError(
            f"column {data.text_columns[0]!r} holds {words} words, but column {column!r} holds {len(value)} labels; "
            "each word needs one"
        )
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {column!r}: word {found.index(None) + 1} of {words} has an empty label")
    # Each row of a file has texts of its own, though there are a few labels only.
    return tuple(sys.intern(each) if isinstance(each, str) else each for each in found if each is not None)


def read_tags(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int32] | None:
    """The id of each word's class; None where labels are missing and that is allowed.

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
    """Arrays of any lengths as an array of arrays, of shape [N]."""
    column = np.empty(len(found), dtype=object)
    for number, each in enumerate(found):
        column[number] = each
    return column


def all_words(labels: NDArray[Any]) -> NDArray[np.int32]:
    """The ids of all words, of labels by example."""
    return np.concatenate([np.empty(0, dtype=np.int32), *labels])


AnyLabel = Label | LabelList
"""What a row says of its example: a label, or several."""


class LabelKind(NamedTuple):
    """What is done with the labels of a task.

    `plain` makes a label out of a row's value, of which the example has so many texts, or words; None if it is missing.
    `find` tells the classes by the values of train. `read` says what a label means, `missing` what stands where there
    is none, and `gather` makes an array of such meanings. The first and the third raise `ValueError`, the second
    `CorpusError`.
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
    """Which examples have no label."""
    if labels.dtype == object:
        return np.array([not len(each) for each in labels], dtype=np.bool_)
    if labels.ndim > 1:
        labels = labels[:, 0]
    missing: NDArray[np.bool_] = np.isnan(labels) if labels.dtype.kind == "f" else labels < 0
    return missing
