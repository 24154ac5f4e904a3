"""What is checked of labelled data as a whole: that each split has its columns, and each class its examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import CorpusError
from trainer.config.labelled import LabelledDataConfig
from trainer.corpus.csv_files import delimiter_hint
from trainer.labelled.labels import REGRESSION, Labels
from trainer.labelled.rows import Part, columns_of, open_table
from trainer.labelled.scan import rows_of
from trainer.labelled.sources import TEST, TRAIN
from trainer.labelled.words import all_words

MOST_TOLD = 12
"""Classes that a message lists."""


def check_columns(data: LabelledDataConfig, parts: dict[str, list[Part]]) -> tuple[list[str], list[str] | None]:
    """The columns that are left out, and the data set's own class names, which a test split alone does not give.

    Raises `CorpusError` if a column is missing.
    """
    wanted = columns_of(data)
    dropped: dict[str, None] = {}
    names: dict[str, list[str]] = {}
    named: list[str] | None = None
    identified: dict[str, set[bool]] = {}
    for split, each in parts.items():
        for part in each:
            table = open_table(part, data)
            require_columns(data, split, part, table.columns)
            identified.setdefault(split, set()).add(data.id_column in table.columns)
            dropped.update(dict.fromkeys(column for column in table.columns if column not in wanted))
            if table.class_names is not None:
                names[part.name] = table.class_names
                named = named or (table.class_names if split != TEST else None)
    if data.id_column is not None:
        _check_ids(data, parts, identified)
    if len({tuple(each) for each in names.values()}) > 1:
        found = "; ".join(f"{part} has {', '.join(each)}" for part, each in names.items())
        raise CorpusError(f"data set {data.name!r}: its parts do not number the same classes alike: {found}")
    return list(dropped), named


def require_columns(data: LabelledDataConfig, split: str, part: Part, found: list[str]) -> None:
    """Raise `CorpusError` if the columns of a split's part lack texts, or labels, which a test split may do without."""
    labelled = split != TEST or not set(data.columns_of_labels).isdisjoint(found)
    needed = [*data.text_columns, *(data.columns_of_labels if labelled else [])]
    if missing := [column for column in needed if column not in found]:
        raise lacks_column(data, part, missing[0], found)


def _check_ids(data: LabelledDataConfig, parts: dict[str, list[Part]], identified: dict[str, set[bool]]) -> None:
    """Raise `CorpusError` if no split has the id column, or some files of a split and not others."""
    assert data.id_column is not None
    if not any(True in found for found in identified.values()):
        part = parts[TRAIN][0]
        raise lacks_column(data, part, data.id_column, open_table(part, data).columns)
    if mixed := [split for split, found in identified.items() if len(found) > 1]:
        raise CorpusError(
            f"data set {data.name!r}: some files of the {mixed[0]} split have the column {data.id_column!r} and others do not; "
            "leave id_column out, or give files that are alike"
        )


def lacks_column(data: LabelledDataConfig, part: Part, column: str, found: list[str]) -> CorpusError:
    """The error for a part without a column that is needed; `found` are those that it has."""
    hint = delimiter_hint(found, columns_of(data)) if data.source == "csv" else ""
    if not hint and data.source == "csv" and not data.columns:
        hint = "; if its first line is no header, name its columns in `columns`"
    elif not hint and data.columns and column in data.columns_of_labels and len(found) < len(data.columns):
        hint = f": its first line has {len(found)} columns, and `columns` names {len(data.columns)}"
    return CorpusError(f"{part.name} has no column {column!r}; it has {', '.join(found) or 'none'}{hint}")


def require_all_classes(
    data: LabelledDataConfig, labels: Labels, parts: Sequence[Part], kept: NDArray[np.bool_], meant: NDArray[Any]
) -> None:
    """Raise `CorpusError` for a class of train that nothing but a greater id speaks for: no name, and no example.

    `kept`: which rows of the parts are good, of shape [rows]; `meant`: the ids of the good ones.
    """
    if labels.classes is None:
        return
    present = classes_present(meant)
    if not (absent := [name for number, name in enumerate(labels.classes) if number not in present]):
        return
    last = labels.classes[present[-1]]
    if data.task == "tokens":
        has_last = np.array([present[-1] in each for each in meant])
    else:
        has_last = meant[:, present[-1]] > 0 if meant.ndim > 1 else meant == present[-1]
    row = int(np.flatnonzero(kept)[np.argmax(has_last)])
    place = next(place for number, (place, _) in enumerate(rows_of(data, parts)) if number == row)
    raise CorpusError(
        f"data set {data.name!r}: column {data.label_column!r} holds {_listed([labels.classes[each] for each in present])} in "
        f"train; ids from 0 on make that {len(labels.classes)} classes, and {_listed(absent)} "
        f"{'has' if len(absent) == 1 else 'have'} no example. {last} stands first at {place()}. Correct the labels, or name "
        "the classes in `classes`: in the order of their ids, or, if these integers are names, the integers themselves; for "
        f"numbers, {REGRESSION}"
    )


def classes_present(meant: NDArray[Any]) -> NDArray[np.int64]:
    """The ids of the classes that some example has, of labels as a `LabelledSplit` has them."""
    if meant.ndim > 1:
        return np.flatnonzero((meant > 0).any(axis=0))
    return np.unique(all_words(meant) if meant.dtype == object else meant)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_TOLD]) + (f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else "")
