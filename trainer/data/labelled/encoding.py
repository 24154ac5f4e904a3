"""The step that encodes a labelled data set in blocks of examples; encodes whole files for a finished classifier."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.display import plural, some
from trainer.common.errors import CorpusError
from trainer.common.progress import Progress
from trainer.common.temporary import temporary_folder
from trainer.config.engines import Engine, RayEngine
from trainer.config.labelled import FinetuneJob, LabelledDataConfig
from trainer.data.encoded import ENDING, IDENTIFIED, encoded_step, in_data, open_rows, writing_rows
from trainer.data.labelled.encoded import FIRST_TOKENS, LISTS, UNSEEN, EncodedSet, EncodedSplit, open_split
from trainer.data.labelled.examples import (
    LabelledSet,
    LabelledSplit,
    check_columns,
    open_labelled,
    read_split,
    require_examples,
)
from trainer.data.labelled.label_kinds import TASKS, unlabelled
from trainer.data.labelled.rows import BAD, Example, characters_of, errors_of, scan_rows
from trainer.data.labelled.text_encoder import Encoding, TextEncoder, is_plain, load_text_encoder
from trainer.data.shards import batches
from trainer.data.splits import TEST, TRAIN, SplitSource, fetch_part, find_splits
from trainer.models.pretrained import find_pretrained
from trainer.models.taken_tokenizer import PLAIN_CLASS
from trainer.records.steps import Step
from trainer.store.storage import Store

log = logging.getLogger(__name__)

FORMAT = 8

TAGS = pa.list_(pa.int32())
"""The type of words' labels."""

LabelledBlock = tuple[list[Example], NDArray[Any]]
"""Some examples and their labels."""

Carry = Callable[[Callable[[LabelledBlock], "EncodedBlock"], Iterable[LabelledBlock]], Iterable["EncodedBlock"]]

BLOCK_CHARACTERS, BLOCK_EXAMPLES = 2**20, 1024
"""Text encoded and written at a time."""


def encode(store: Store, job: FinetuneJob, progress: Progress, model_folder: str | Path | None = None) -> Step:
    """The step that encodes the job's data set with the model's tokenizer; finds the model's folder unless it is given.

    It raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for an unusable tokenizer, `ConfigError`
    for a length beyond the model's positions, `StorageError` if the store refuses.
    """
    data = job.data
    folder = model_folder or find_pretrained(store, job.model.pretrained).folder
    encoder, source = load_text_encoder(folder, data), find_splits(store, data)
    options = data.model_dump(exclude={*IDENTIFIED, "validation_fraction"})
    options |= {"quoting": data.quoting, "max_length": encoder.max_length}
    recipe = {"format": FORMAT, **in_data(options)}
    return encoded_step(store, data, source, encoder, recipe, partial(_write, store, job, progress, source, encoder))


def _write(
    store: Store, job: FinetuneJob, progress: Progress, source: SplitSource, encoder: TextEncoder, folder: Path
) -> dict[str, Any]:
    """Write the splits of the job's data into a folder; returns the manifest's details."""
    data = job.data
    _warn_of_tokenizer(encoder)
    with open_labelled(data, source, progress) as labelled:
        _warn_of_unlabelled(data, labelled)
        total = sum(map(len, labelled.splits.values()))
        with _carry(job.engine, store) as carry, progress.bar(f"encode {data.name}", total, "example") as bar:
            figures = {
                split: write_split(folder, split, examples, encoder, f"{data.name}: {split}", bar.advance, carry)
                for split, examples in labelled.splits.items()
            }
        for split, examples in labelled.splits.items():
            written = open_split(open_rows(folder / f"{split}{ENDING}"), encoder.pad_id)
            figures[split] |= _count(written, labelled.classes) | examples.bad.as_details()
        for split, number in labelled.in_train.items():
            figures[split]["in_train"] = number
    details = {
        **_describe(data, encoder, labelled.classes, figures),
        "dropped_columns": labelled.dropped,
        "pad_token": encoder.pad_token,
        "pad_is_end": encoder.pad_is_end,
        "divider": encoder.divider,
        # Not by the type of this model: models of other types with the same tokenizer share the set.
        **({"tokenizer_class": PLAIN_CLASS} if encoder.by_words and is_plain(folder) else {}),
    }
    log.info("%s: %s", data.name, describe_columns(details))
    _warn_of_unseen(details)
    return details


def write_split(
    folder: Path,
    name: str,
    examples: LabelledSplit,
    encoder: TextEncoder,
    title: str,
    advance: Callable[[int], None],
    carry: Carry = map,
) -> dict[str, Any]:
    """Encode a split into its file, block by block; returns counts of what was encoded.

    `title` is the split's name in messages; `carry` is `map`, or runs the blocks elsewhere. Raises `RecordError` for
    the first example without tokens that may not be skipped, `CorpusError` if no example is left.
    """
    kind = TAGS if examples.labels.dtype == object else pa.from_numpy_dtype(examples.labels.dtype)
    if examples.labels.ndim > 1:
        kind = pa.list_(kind, examples.labels.shape[1])
    figures, longest, written, before = Counter[str](), 0, 0, examples.bad.count
    spelled = Counter[str]()
    with writing_rows(folder, name, _schema(encoder, kind)) as writer:
        for encoded in carry(partial(_encode_labelled, encoder=encoder, kind=kind), _labelled_blocks(examples)):
            examples.bad.add_all(len(encoded.bad), errors_of(examples.data, examples.parts, encoded.bad))
            writer.write_batch(encoded.rows)
            figures.update(encoded.counts)
            spelled.update(encoded.spelled)
            longest, written = max(longest, encoded.longest), written + encoded.rows.num_rows
            advance(encoded.rows.num_rows + len(encoded.bad))
    if not written:
        raise CorpusError(f"data set {title}: the tokenizer gives no tokens for any of its {len(examples)} examples")
    if examples.bad.count > before:
        log.warning("data set %s: skipped %s", title, examples.bad.describe())
    warn_of_markers(title, spelled)
    return {"examples": written, "longest": longest, **figures}


def _labelled_blocks(split: LabelledSplit) -> Iterator[LabelledBlock]:
    done = 0
    for block in batches(split.examples(), BLOCK_CHARACTERS, characters_of, BLOCK_EXAMPLES):
        yield block, split.labels[done : done + len(block)]
        done += len(block)


def _encode_labelled(block: LabelledBlock, encoder: TextEncoder, kind: pa.DataType) -> "EncodedBlock":
    examples, labels = block
    missing = unlabelled(labels)
    if labels.dtype == object:
        tags = [None if none else each for each, none in zip(labels, missing, strict=True)]
        return encode_block(examples, encoder, pa.array(tags, kind))
    if labels.ndim == 1:
        return encode_block(examples, encoder, pa.array(labels, kind, mask=missing))
    rows = pa.array(labels.ravel(), kind.value_type)
    return encode_block(examples, encoder, pa.FixedSizeListArray.from_arrays(rows, type=kind, mask=pa.array(missing)))


class EncodedBlock(NamedTuple):
    """Encoded examples as rows of the file, the tokens of the longest, and counts: truncated examples and tokens; if
    each word has a label, also all words and those that the model does not see. `bad` are the examples that are left
    out, because nothing of them can be predicted: their rows' numbers, and why. `spelled` counts the examples that
    spell each special token of `TextEncoder.find_markers`.
    """

    rows: pa.RecordBatch
    longest: int
    counts: dict[str, int]
    bad: dict[int, str]
    spelled: Counter[str]


def encode_block(block: list[Example], encoder: TextEncoder, labels: pa.Array) -> EncodedBlock:
    """Encode some examples, without those of which nothing can be predicted."""
    encodings = encoder.encode([example.texts for example in block])
    bad = {example.row: why for example, each in zip(block, encodings, strict=True) if (why := _lacks_tokens(each))}
    if bad:
        kept = [place for place, example in enumerate(block) if example.row not in bad]
        block, encodings = [block[place] for place in kept], [encodings[place] for place in kept]
        labels = labels.take(pa.array(kept, pa.int64()))
    spelled = Counter(token for example in block for token in encoder.find_markers(example.texts))
    lengths = np.array([len(each.input_ids) for each in encodings], dtype=np.int64)
    schema = _schema(encoder, labels.type)
    columns = [_lists(encodings, each, LISTS[each], lengths) for each in LISTS if each in schema.names]
    columns = [pa.array([example.id for example in block], pa.string()), *columns, labels]
    counts = {"truncated": sum(each.truncated for each in encodings), "tokens": int(lengths.sum())}
    if encoder.by_words:
        words = np.array([len(example.texts) for example in block], dtype=np.int64)
        columns.append(_lists(encodings, FIRST_TOKENS, pa.int32(), words))
        unseen = sum(int(np.count_nonzero(each.first_tokens == UNSEEN)) for each in encodings)
        counts |= {"words": int(words.sum()), "unseen_words": unseen}
    return EncodedBlock(pa.record_batch(columns, schema=schema), int(lengths.max(initial=0)), counts, bad, spelled)


def _lacks_tokens(found: Encoding) -> str | None:
    """Why nothing of an example can be predicted; None if something can."""
    if not len(found.input_ids):
        return "the tokenizer gives no tokens for the text"
    if found.first_tokens is None or (found.first_tokens != UNSEEN).any():
        return None
    if found.truncated:
        return (
            "no word can have a label: the last one is longer than data.max_length, and texts are cut on the left; "
            "increase it"
        )
    return "no word can have a label: the tokenizer gives no tokens for any of them"


def warn_of_markers(name: str, spelled: Counter[str]) -> None:
    """Warn of special tokens that texts spell, given the number of examples for each; `name` is the data's."""
    if spelled:
        found = sorted(spelled.items(), key=lambda each: (-each[1], each[0]))
        log.warning(
            "data set %s: texts spell special tokens of the tokenizer (%s), which are read as text, not as one token; "
            "to have them read as one, add them to the tokenizer with `add_tokens`, as tokens that are not special",
            name, some(f"{token!r} in {plural(number, 'example')}" for token, number in found),
        )  # fmt: skip


def _schema(encoder: TextEncoder, labels: pa.DataType) -> pa.Schema:
    lists = {name: kind for name, kind in LISTS.items() if name == "input_ids" or encoder.has_types}
    fields = [pa.field("id", pa.string()), *(pa.field(name, pa.list_(kind)) for name, kind in lists.items())]
    words = [pa.field(FIRST_TOKENS, pa.list_(pa.int32()))] if encoder.by_words else []
    return pa.schema([*fields, pa.field("labels", labels), *words])


def _lists(encodings: list[Encoding], name: str, kind: pa.DataType, lengths: NDArray[np.int64]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([np.empty(0, kind.to_pandas_dtype()), *(getattr(each, name) for each in encodings)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


def _warn_of_tokenizer(encoder: TextEncoder) -> None:
    if encoder.pad_is_end:
        log.info("the tokenizer has no padding token: padding with its end token %r", encoder.pad_token)
    if encoder.divider is not None:
        log.info("the tokenizer puts nothing between the texts of a pair: adding %r there", encoder.divider)
    if encoder.other_class is not None:
        log.warning(
            "`AutoTokenizer.from_pretrained` loads the published tokenizer of such a model as %s, which puts no space "
            "before words, unlike in training: load it with `%s.from_pretrained`",
            encoder.other_class, PLAIN_CLASS,
        )  # fmt: skip


@contextmanager
def _carry(engine: Engine, store: Store) -> Iterator[Carry]:
    """Where blocks of examples are encoded: in this process, or in tasks of a cluster."""
    if isinstance(engine, RayEngine):
        from trainer.engines.ray_tasks import ray_tasks

        with ray_tasks(engine, store) as tasks:
            yield tasks.map
    else:
        yield map


def describe_columns(details: dict[str, Any]) -> str:
    """The use of the data set's columns, in one line."""
    texts, dropped = " and ".join(details["text_columns"]), ", ".join(details["dropped_columns"]) or "none"
    return f"text columns: {texts}; label columns: {details['label_column']}; unused columns: {dropped}"


def _warn_of_unlabelled(data: LabelledDataConfig, labelled: LabelledSet) -> None:
    for split, found in labelled.splits.items():
        if 0 < (missing := int(unlabelled(found.labels).sum())) < len(found):
            log.warning(
                "data set %s: %d of %d examples of the %s split have no label: all are predicted, but metrics use only "
                "the other %d",
                data.name, missing, len(found), split, len(found) - missing,
            )  # fmt: skip


def _warn_of_unseen(details: dict[str, Any]) -> None:
    for name, split in details["splits"].items():
        if unseen := split.get("unseen_words"):
            log.warning(
                "data set %s: the model does not see %d of %d words of the %s split: they are beyond %d tokens, or "
                "have no tokens; they are neither trained on nor measured",
                details["name"], unseen, split["words"], name, details["max_length"],
            )  # fmt: skip


def _count(split: EncodedSplit, classes: list[str] | None) -> dict[str, Any]:
    """The number of labelled examples; the count of each class among examples or seen words, or the numbers' mean and
    range.
    """
    known = split.labels[split.rows(np.flatnonzero(split.labelled))]
    labelled = int(split.labelled.sum())
    if classes is not None:
        return {"labelled": labelled, "class_counts": count_classes(known, classes)}
    if not labelled:
        return {"labelled": 0, "target": None}
    target = {"mean": float(known.mean()), "min": float(known.min()), "max": float(known.max())}
    return {"labelled": labelled, "target": target}


def count_classes(ids: NDArray[Any], classes: list[str]) -> dict[str, int]:
    """The number of labels of each class; `ids` has shape [N], or is 0 or 1 per class, [N, C]."""
    counts = np.bincount(ids, minlength=len(classes)) if ids.ndim == 1 else ids.sum(axis=0, dtype=np.int64)
    return dict(zip(classes, counts.tolist(), strict=True))


def _describe(
    data: LabelledDataConfig, encoder: TextEncoder, classes: list[str] | None, splits: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The entries common to all manifests of encoded examples."""
    return {
        "name": data.name,
        "task": data.task,
        "classes": classes,
        "text_columns": data.text_columns,
        "label_column": ", ".join(data.columns_of_labels),
        "max_length": encoder.max_length,
        "pad_id": encoder.pad_id,
        "vocab_size": encoder.vocab_size,
        "splits": splits,
    }


@contextmanager
def encode_files(
    data: LabelledDataConfig,
    source: SplitSource,
    encoder: TextEncoder,
    classes: list[str] | None,
    progress: Progress,
) -> Iterator[EncodedSet]:
    """The examples of some files, given as training files in `data`, as a set with only a test split, for the block.

    Raises `CorpusError` and `RecordError` as reading training data does: for a missing column, labels that are not
    among the `classes`, and files without labels.
    """
    with temporary_folder() as folder:
        parts = [fetch_part(part, Path(folder)) for part in source.parts[TRAIN]]
        _, named = check_columns(data, {TRAIN: parts})
        with progress.bar(f"read {data.name}", None, "row") as bar:
            scan = scan_rows(data, TEST, parts, False, bar.advance)
        require_examples(data, TEST, scan, scan.codes != BAD)
        labels = TASKS[data.task].find(data, scan.values, named, len(scan.codes))
        split = read_split(data, labels, TEST, scan)
        labelled = int((~unlabelled(split.labels)).sum())
        if not labelled:
            names = ", ".join(part.name for part in parts)
            raise CorpusError(
                f"{names}: no example has a label, so nothing can be measured; use `predict` to predict them"
            )
        with progress.bar(f"encode {data.name}", len(split), "example") as bar:
            figures = write_split(Path(folder), TEST, split, encoder, data.name, bar.advance)
        details = {
            **_describe(data, encoder, classes, {TEST: {**figures, **scan.bad.as_details(), "labelled": labelled}}),
            "tokenizer": encoder.digest,
            "source": {"identity": source.identity[TRAIN], "validation_cut": False},
        }
        yield EncodedSet(
            details, {TEST: open_split(open_rows(Path(folder, f"{TEST}{ENDING}")), encoder.pad_id)}, encoder.pad_id
        )
