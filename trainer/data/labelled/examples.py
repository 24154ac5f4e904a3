"""Labelled data, read and checked completely before long work begins.

A scan of each split's rows keeps a few bytes per row; the texts are read again, in blocks, when they are needed.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.bad_records import BadRecords
from trainer.common.display import some
from trainer.common.errors import CorpusError, RecordError
from trainer.common.progress import Progress
from trainer.common.temporary import temporary_folder
from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.label_kinds import TASKS, unlabelled
from trainer.data.labelled.label_lists import all_words
from trainer.data.labelled.labels import REGRESSION, UNLABELLED, Labels
from trainer.data.labelled.rows import BAD, Example, Scan, columns_of, read_rows, reading_of, scan_rows
from trainer.data.raw_files import csv_header, delimiter_hint, spelling_hint
from trainer.data.splits import (
    TEST,
    TRAIN,
    VALIDATION,
    Part,
    SplitSource,
    SplitTexts,
    bad_records,
    fetch_part,
    look_at_columns,
)
from trainer.data.tables import FIRST_LINE

log = logging.getLogger(__name__)


MOST_LISTED = 12
"""The most classes that a message lists."""


def check_columns(data: LabelledDataConfig, parts: dict[str, list[Part]]) -> tuple[list[str], list[str] | None]:
    """The columns that are not used, and the data set's own class names, unless only the test split has them.

    Raises `CorpusError` if a column is missing, or if parts, or `classes`, number the same classes differently.
    """
    wanted = columns_of(data)
    dropped: dict[str, None] = {}
    names: dict[str, list[str]] = {}
    named: list[str] | None = None
    identified: dict[str, set[bool]] = {}
    for split, each in parts.items():
        for part in each:
            columns, features, _ = look_at_columns(part, reading_of(data))
            require_columns(data, split, part, columns)
            identified.setdefault(split, set()).add(data.id_column in columns)
            dropped.update(dict.fromkeys(column for column in columns if column not in wanted))
            if data.label_columns is None and (own := _class_names(features().get(data.label_column))) is not None:
                names[part.name] = own
                named = named or (own if split != TEST else None)
    if data.id_column is not None:
        _check_ids(data, parts, identified)
    if len({tuple(each) for each in names.values()}) > 1:
        found = "; ".join(f"{part} has {', '.join(each)}" for part, each in names.items())
        raise CorpusError(f"data set {data.name!r}: its parts number the classes differently: {found}")
    for part_name, own in names.items():
        _require_numbered_alike(data, part_name, own)
    return list(dropped), named


def _require_numbered_alike(data: LabelledDataConfig, part: str, own: list[str]) -> None:
    """Raise `CorpusError` if `classes` gives one of a part's names another id: labels would be renamed."""
    classes, numbers = data.classes or [], {name: number for number, name in enumerate(own)}
    for number, name in enumerate(classes):
        if numbers.get(name, number) != number:
            raise CorpusError(
                f"data set {data.name!r}: {name!r} is number {number} of the classes ({', '.join(classes)}), but "
                f"{numbers[name]} in {part} ({', '.join(own)}); number them the same way, or write the labels as names"
            )


def _class_names(feature: Any) -> list[str] | None:
    """The data set's names of the classes of a column, if it has any."""
    if feature is None:
        return None
    from datasets import ClassLabel

    feature = getattr(feature, "feature", feature)  # a list's entries
    return list(feature.names) if isinstance(feature, ClassLabel) else None


def require_columns(data: LabelledDataConfig, split: str, part: Part, found: list[str]) -> None:
    """Raise `CorpusError` if a split's part lacks text or label columns; a test split may have no label columns."""
    labelled = split != TEST or not set(data.columns_of_labels).isdisjoint(found)
    needed = [*data.text_columns, *(data.columns_of_labels if labelled else [])]
    if missing := [column for column in needed if column not in found]:
        raise lacks_column(data, part, missing[0], found)


def _check_ids(data: LabelledDataConfig, parts: dict[str, list[Part]], identified: dict[str, set[bool]]) -> None:
    """Raise `CorpusError` if no split has the id column, or only some files of a split have it."""
    assert data.id_column is not None
    if not any(True in found for found in identified.values()):
        part = parts[TRAIN][0]
        raise lacks_column(data, part, data.id_column, look_at_columns(part, reading_of(data)).names)
    if mixed := [split for split, found in identified.items() if len(found) > 1]:
        raise CorpusError(
            f"data set {data.name!r}: some files of the {mixed[0]} split have the column {data.id_column!r} and others "
            "do not; remove id_column, or use files with the same columns"
        )


def _check_first_lines(data: LabelledDataConfig, scans: dict[str, Scan]) -> None:
    """Check for headers that were read as examples, because `columns` is set and their names are others.

    Raises `CorpusError` if several files begin with the same line, and no other line has its label; warns if a first
    line is the only one with its label.
    """
    if data.columns is None or data.classes is not None or data.task != "classification":
        return
    paths = [(part.name, part.path) for scan in scans.values() for part in scan.parts]
    firsts = {name: tuple(csv_header(path, data)[0]) for name, path in paths}
    counts = Counter(firsts.values())
    for name, first in firsts.items():
        named, named_by = reading_of(data).name_columns(name, list(first))
        if named_by == FIRST_LINE or data.label_column not in named or len(first) != len(named):
            continue
        label = first[named.index(data.label_column)]
        with_it = sum(
            int((scan.codes == scan.values.index(label)).sum()) for scan in scans.values() if label in scan.values
        )
        if with_it != counts[first]:
            continue
        what = f"{name}: line 1 looks like a header, because no other line has the label {label!r}"
        todo = "remove `columns`, or spell the columns' names as in that line"
        if with_it > 1:
            raise CorpusError(
                f"{what}, and {with_it} files begin with it: {todo}; if it is an example, list the classes in `classes`"
            )
        log.warning("%s; if it is one, %s", what, todo)


def lacks_column(data: LabelledDataConfig, part: Part, column: str, found: list[str]) -> CorpusError:
    """The error for a part without a required column; `found` are the columns that it has."""
    hint = spelling_hint(found, column)
    if not hint and data.source == "csv":
        hint = delimiter_hint(found, columns_of(data))
    if not hint and data.source == "csv" and not data.columns:
        hint = "; if its first line is not a header, list its columns in `columns`"
    elif not hint and data.columns and column in data.columns_of_labels and len(found) < len(data.columns):
        hint = f": its first line has {len(found)} columns, and `columns` has {len(data.columns)}"
    return CorpusError(f"{part.name} has no column {column!r}; it has {', '.join(found) or 'none'}{hint}")


def require_all_classes(
    data: LabelledDataConfig, labels: Labels, parts: Sequence[Part], kept: NDArray[np.bool_], numbers: NDArray[Any]
) -> None:
    """Raise `CorpusError` for a class of train that exists only because of a greater id: it has no name and no example.

    `kept`: whether each row of the parts is good, of shape [rows]; `numbers`: the labels of the good ones.
    """
    if labels.classes is None:
        return
    present = classes_present(numbers)
    if not (absent := [name for number, name in enumerate(labels.classes) if number not in present]):
        return
    last = labels.classes[present[-1]]
    first = next(
        number for number in range(len(numbers)) if present[-1] in classes_present(numbers[number : number + 1])
    )
    row = int(np.flatnonzero(kept)[first])
    place = next(islice(read_rows(data, parts), row, None)).place
    raise CorpusError(
        f"data set {data.name!r}: column {data.label_column!r} holds "
        f"{some((labels.classes[each] for each in present), MOST_LISTED)} in train; as ids from 0 these mean "
        f"{len(labels.classes)} classes, but {some(absent, MOST_LISTED)} {'has' if len(absent) == 1 else 'have'} no "
        f"example. {last} is first at {place()}. Correct the labels, or list the classes in `classes`: in the order of "
        f"their ids, or, if these integers are names, the integers themselves; for numbers, {REGRESSION}"
    )


def classes_present(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """The ids of the classes that have examples; `numbers` is as `LabelledSplit.labels`."""
    if numbers.ndim > 1:
        return np.flatnonzero((numbers > 0).any(axis=0))
    return np.unique(all_words(numbers) if numbers.dtype == object else numbers)


@dataclass(frozen=True)
class LabelledSplit:
    """The good examples of one split.

    `labels` by task: int64 ids [examples], -1 if missing; float64 numbers [examples], NaN if missing; for several
    labels int8 [examples, classes], 1 for those that apply, -1 if missing; for a label per word an object array
    [examples] of int32 [words], empty if missing. `kept` has the shape [rows], `bad` are the rows that were skipped.
    """

    data: LabelledDataConfig
    parts: Sequence[Part]
    kept: NDArray[np.bool_]
    labels: NDArray[Any]
    bad: BadRecords

    def __len__(self) -> int:
        return len(self.labels)

    def examples(self) -> Iterator[Example]:
        """The examples in the order of their rows, read again. An id is the id column's value, else the row's index."""
        for number, row in enumerate(read_rows(self.data, self.parts)):
            if self.kept[number]:
                yield row.example(number)


class LabelledSet(NamedTuple):
    """Checked data: the names of the classes (None: regression), the splits, and the columns that are not used.

    `in_train` counts the labelled examples of each other split whose texts are in train as well.
    """

    classes: list[str] | None
    splits: dict[str, LabelledSplit]
    dropped: list[str]
    in_train: dict[str, int]


@contextmanager
def open_labelled(data: LabelledDataConfig, source: SplitSource, progress: Progress) -> Iterator[LabelledSet]:
    """Check all rows; the set can be read within the block.

    Raises `CorpusError` for a missing column, an empty split, or labels that cannot be classes, and `RecordError` for
    the first bad row of a split that may not be skipped.
    """
    with temporary_folder() as folder:
        parts = {split: [fetch_part(part, Path(folder)) for part in each] for split, each in source.parts.items()}
        dropped, named = check_columns(data, parts)
        with progress.bar(f"read {data.name}", None, "row") as bar:
            scans = {
                split: scan_rows(data, split, each, source.cut and split == TRAIN, bar.advance)
                for split, each in parts.items()
            }
        for split, scan in scans.items():
            require_examples(data, split, scan, scan.codes != BAD)
        _check_first_lines(data, scans)
        train = scans[TRAIN]
        labels = TASKS[data.task].find(data, train.values, named, _labels_given(data, train))
        splits = {split: read_split(data, labels, split, scan) for split, scan in scans.items()}
        if data.classes is None and data.label_columns is None and named is None:
            whole = splits[TRAIN]
            require_all_classes(data, labels, train.parts, whole.kept, whole.labels)
        if source.cut:
            splits[TRAIN], splits[VALIDATION] = _cut(data, splits[TRAIN], train.held)
            log.info(
                "data set %s has no validation split: %d of %d training examples are held out, by a hash of their "
                "text",
                data.name, len(splits[VALIDATION]), len(splits[VALIDATION]) + len(splits[TRAIN]),
            )  # fmt: skip
        _warn_of_classes(data, labels, splits)
        order = [split for split in (TRAIN, VALIDATION, TEST) if split in splits]
        learnt, in_train = train.digests[splits[TRAIN].kept], {}
        for split in order[1:]:
            measured = splits[split]
            held_out = scans.get(split, train).digests[measured.kept][~unlabelled(measured.labels)]
            in_train[split] = int(np.isin(held_out, learnt).sum())
            if in_train[split]:
                log.warning(
                    "data set %s: %d of %d %s examples are also in train, so metrics on %s are too optimistic",
                    data.name, in_train[split], len(held_out), split, split,
                )  # fmt: skip
        yield LabelledSet(labels.classes, {split: splits[split] for split in order}, dropped, in_train)


def read_split(data: LabelledDataConfig, labels: Labels, split: str, scan: Scan) -> LabelledSplit:
    """The good rows of a split with their labels; warns about skipped rows.

    Raises `RecordError` for an invalid label that may not be skipped, `CorpusError` if no row is left.
    """
    numbers, good = read_labels(data, labels, split, scan)
    if scan.bad.count:
        log.warning("data set %s, %s split: skipped %s", data.name, split, scan.bad.describe())
    require_examples(data, split, scan, good)
    return LabelledSplit(data, scan.parts, good, numbers, scan.bad)


def read_labels(
    data: LabelledDataConfig, labels: Labels, split: str, scan: Scan
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The labels of the good rows, and which rows are good. Raises `RecordError` for an invalid label."""
    kind = TASKS[data.task]
    missing = kind.missing(labels)
    meanings: list[Any] = [missing] * (len(scan.values) + 1)  # the last entry is for BAD, which is -1
    problems: dict[int, ValueError] = {}
    for code, value in enumerate(scan.values):
        try:
            found = kind.read(labels, value, split == TEST)
        except ValueError as error:
            problems[code] = error
        else:
            meanings[code] = missing if found is None else found
    wrong = np.isin(scan.codes, list(problems))
    if wrong.any():
        scan.bad.add_all(int(wrong.sum()), _meaningless(data, scan, wrong, problems))
    good = (scan.codes != BAD) & ~wrong
    numbers = kind.gather(meanings)[scan.codes[good]]
    if split == TEST and data.task == "multi-label" and not (numbers > 0).any():
        numbers[:] = UNLABELLED  # empty texts or columns of 0 throughout: the labels are withheld
    if split == TEST and data.task == "regression" and (numbers == UNLABELLED).all():
        numbers[:] = np.nan  # GLUE withholds numbers as -1
    return numbers, good


def _meaningless(
    data: LabelledDataConfig, scan: Scan, wrong: NDArray[np.bool_], problems: dict[int, ValueError]
) -> Iterator[RecordError]:
    """The errors of rows with invalid labels; reads the rows again, because a scan does not keep their locations."""
    for code, row in compress(zip(scan.codes.tolist(), read_rows(data, scan.parts), strict=False), wrong):
        yield RecordError(f"{row.place()}: column {data.columns_of_labels[0]!r}: {problems[code]}")


def _labels_given(data: LabelledDataConfig, scan: Scan) -> int:
    """The most labels that one class can have: one per row, or one per word."""
    return sum(map(len, filter(None, scan.values))) if data.task == "tokens" else len(scan.codes)


def require_examples(data: LabelledDataConfig, split: str, scan: Scan, good: NDArray[np.bool_]) -> None:
    """Raise `CorpusError` for a split without good examples."""
    if not good.any():
        raise CorpusError(
            f"data set {data.name!r}: the {split} split is empty: {len(good)} records, {len(good)} of them bad; check "
            f"that {', '.join(part.name for part in scan.parts)} is the right data"
        )


def _cut(
    data: LabelledDataConfig, whole: LabelledSplit, held_out: NDArray[np.bool_]
) -> tuple[LabelledSplit, LabelledSplit]:
    """Split into train and validation by the hash of the texts, so equal texts stay together."""

    def side(split: str, kept: NDArray[np.bool_]) -> LabelledSplit:
        if not kept.any():
            raise CorpusError(
                f"data set {data.name!r}: no validation data is given, and the hash of the texts leaves the {split} "
                f"split empty, out of {len(whole)} examples; give validation data, or change validation_fraction, now "
                f"{data.validation_fraction}"
            )
        return replace(whole, kept=kept, labels=whole.labels[kept[whole.kept]])

    return side(TRAIN, whole.kept & ~held_out), replace(
        side(VALIDATION, whole.kept & held_out), bad=bad_records(data, VALIDATION)
    )


def _warn_of_classes(data: LabelledDataConfig, labels: Labels, splits: dict[str, LabelledSplit]) -> None:
    if labels.classes is None:
        return
    for split in (TRAIN, VALIDATION):
        if data.task != "multi-label" and len(found := classes_present(splits[split].labels)) == 1:
            what, name = "word" if data.task == "tokens" else "example", labels.classes[int(found[0])]
            log.warning("data set %s: every %s of the %s split has the class %r", data.name, what, split, name)
    present = classes_present(splits[TRAIN].labels)
    if absent := [name for number, name in enumerate(labels.classes) if number not in present]:
        log.warning(
            "data set %s: no example of the train split has the class %s", data.name, ", ".join(map(repr, absent))
        )


def _texts_of(
    data: LabelledDataConfig, split: str, parts: Sequence[Part], field: str
) -> Iterator[tuple[int, int, str]]:
    """The texts of a column of the good rows of a split's parts; a row's words are joined by spaces.

    Raises `CorpusError` for a missing column and `RecordError` for the first bad row that may not be skipped, as
    reading the whole data set does, except for checks of labels that need other splits.
    """
    for part in parts:
        require_columns(data, split, part, look_at_columns(part, reading_of(data)).names)
    is_good = iter(scan_rows(data, split, parts, False, lambda rows: None).codes != BAD)
    column = data.text_columns.index(field)
    for place, part in enumerate(parts):
        for number, row in enumerate(read_rows(data, [part])):
            if next(is_good, False):  # if a file has grown, `read_rows` raises at its end
                yield place, number, " ".join(row.texts) if data.task == "tokens" else row.texts[column]


TEXTS = SplitTexts(
    fields=lambda data: data.text_columns,
    read=_texts_of,
    plain=lambda data: data.task != "tokens" and data.columns is None and not data.max_bad_records,
    in_order=lambda data: data.id_column is not None and data.max_bad_records > 0,  # of equal ids, the first stays
)
