"""Checking labelled data before long work: all of it if that takes seconds, else the first rows of each file."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import fsspec
import numpy as np

from trainer.common.display import count, plural
from trainer.common.progress import Progress
from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.encoding import count_classes
from trainer.data.labelled.examples import check_columns, open_labelled, read_labels
from trainer.data.labelled.label_kinds import TASKS, unlabelled
from trainer.data.labelled.label_lists import all_words
from trainer.data.labelled.labels import refuse_fractions
from trainer.data.labelled.rows import BAD, Example, characters_of, read_rows, scan_rows
from trainer.data.labelled.text_encoder import TextEncoder
from trainer.data.shards import batches
from trainer.data.splits import TRAIN, Part, SplitSource, find_splits
from trainer.records.results import Lengths
from trainer.store.storage import Store

SAMPLED = 2000
"""Examples of a split whose length is measured."""

MOST_CHARACTERS = 64
"""Characters of a text that are measured, per token of the model's limit: a longer text is cut in any case."""

BLOCK_EXAMPLES, BLOCK_CHARACTERS = 512, 2**20


def measure_lengths(examples: Iterable[Example], count: int, encoder: TextEncoder) -> Lengths:
    """The lengths of a sample of `count` examples."""
    lengths: list[int] = []
    cut = 0
    sample = islice(examples, 0, None, max(1, count // SAMPLED))
    shortened = (_shortened(each, encoder) for each in sample)
    for block in batches(shortened, BLOCK_CHARACTERS, characters_of, BLOCK_EXAMPLES):
        encodings = encoder.encode([each.texts for each in block])
        lengths += [len(each.input_ids) for each in encodings]
        cut += sum(each.truncated for each in encodings)
    mean = float(np.mean(lengths)) if lengths else 0.0
    return Lengths(examples=len(lengths), mean=mean, longest=max(lengths, default=0), most=encoder.max_length, cut=cut)


def _shortened(example: Example, encoder: TextEncoder) -> Example:
    if encoder.by_words:
        return example
    return example._replace(texts=tuple(text[: MOST_CHARACTERS * encoder.max_length] for text in example.texts))


WHOLE_BYTES = 64 * 2**20
"""Data up to this stored size is checked completely: that takes some seconds."""

HEAD_ROWS = 10_000
"""Rows of each file that are checked if there is more data."""


def rows_to_look_at(parts: Sequence[Part]) -> int | None:
    """How many rows of each part are checked before long work; None for all."""
    return None if sum(map(stored_bytes, parts)) <= WHOLE_BYTES else HEAD_ROWS


def describe_heads(what: str, parts: Sequence[Part]) -> str:
    """Describe what was checked when it was not all."""
    return f"the first {count(HEAD_ROWS)} {what} of each of {plural(len(parts), 'file')}"


class Look(NamedTuple):
    """The result of a check; `classes` and `splits` are None if they can be known only by reading all of the data.

    `splits` has the numbers of examples; `looked_at` describes what was checked. `seen` has the words' labels found
    if not all are known. `lengths` is by split, and `balance` counts the classes in train; both cover what was checked.
    """

    classes: list[str] | None
    splits: dict[str, int] | None
    looked_at: str
    lengths: dict[str, Lengths]
    balance: dict[str, int] | None = None
    seen: list[str] | None = None


def look_at_labelled(store: Store, data: LabelledDataConfig, encoder: TextEncoder, progress: Progress) -> Look:
    """Check the data as far as that is fast. Raises `CorpusError` and `RecordError` as encoding it would."""
    source = find_splits(store, data)
    parts = [part for each in source.parts.values() for part in each]
    if rows_to_look_at(parts) is not None:
        return _look_at_heads(data, source, encoder, progress, describe_heads("rows", parts))
    with open_labelled(data, source, progress) as found:
        sizes = {split: len(examples) for split, examples in found.splits.items()}
        labels = found.splits[TRAIN].labels
        known = all_words(labels) if labels.dtype == object else labels[~unlabelled(labels)]
        counts = count_classes(known, found.classes) if found.classes else None
        lengths = {split: measure_lengths(each.examples(), len(each), encoder) for split, each in found.splits.items()}
        looked_at = f"all {plural(sum(sizes.values()), 'example')}"
        return Look(found.classes, sizes, looked_at, lengths, counts)


def _look_at_heads(
    data: LabelledDataConfig, source: SplitSource, encoder: TextEncoder, progress: Progress, looked_at: str
) -> Look:
    """Check columns and first rows; labels only for their type, unless the classes are known."""
    _, named = check_columns(data, source.parts)
    classes = data.label_columns or data.classes or named
    known = data.task == "regression" or classes is not None
    seen: set[str] = set()
    lengths: dict[str, Lengths] = {}
    balance: Counter[str] = Counter()
    with progress.bar(f"check {data.name}", None, "row") as bar:
        for split, parts in source.parts.items():
            first = (row.example(0) for row in read_rows(data, parts, HEAD_ROWS) if row.wrong is None)
            lengths[split] = measure_lengths(first, HEAD_ROWS * len(parts), encoder)
            for part in parts:
                scan = scan_rows(data, split, [part], False, bar.advance, HEAD_ROWS)
                if split == TRAIN and data.task == "classification":
                    balance.update(str(scan.values[code]) for code in scan.codes[scan.codes != BAD])
                if known:
                    read_labels(data, TASKS[data.task].find(data, scan.values, named, HEAD_ROWS), split, scan)
                elif split == TRAIN and data.task == "classification":
                    refuse_fractions(data, scan.values, None)
                elif split == TRAIN and data.task == "tokens":
                    seen.update(str(label) for tags in scan.values if tags is not None for label in tags)
    return Look(classes, None, looked_at, lengths, dict(sorted(balance.items())) or None, seen=sorted(seen) or None)


def stored_bytes(part: Part) -> int:
    """The stored size of a part."""
    if part.loaded is not None:
        return int(part.loaded.data.nbytes)
    fs, path = fsspec.url_to_fs(part.path)
    return int(fs.size(path) or 0)
