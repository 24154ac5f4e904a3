"""Blocks of labelled examples to the rows of an encoded set, and whole files for a finished classifier."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.errors import CorpusError, RecordError
from trainer.common.progress import Progress
from trainer.config.labelled import LabelledDataConfig
from trainer.data.encoded import ENDING, open_rows, writing_rows
from trainer.data.labelled.encoded import FIRST_TOKENS, LISTS, EncodedSet, open_split
from trainer.data.labelled.examples import LabelledSplit, check_columns, read_split, require_examples
from trainer.data.labelled.rows import BAD, Example, characters_of, scan_rows
from trainer.data.labelled.text_encoder import Encoding, TextEncoder
from trainer.data.labelled.words import KINDS, UNSEEN, all_words
from trainer.data.shards import batches
from trainer.data.splits import TEST, TRAIN, SplitSource, fetch_part

TAGS = pa.list_(pa.int32())
"""How labels of words are held."""

LabelledBlock = tuple[list[Example], NDArray[Any]]
"""Some examples, and their labels."""

Carry = Callable[[Callable[[LabelledBlock], "EncodedBlock"], Iterable[LabelledBlock]], Iterable["EncodedBlock"]]

BLOCK_CHARACTERS, BLOCK_EXAMPLES = 2**20, 1024
"""Text that is encoded, and written, at a time."""


def write_split(
    folder: Path,
    name: str,
    examples: LabelledSplit,
    encoder: TextEncoder,
    told: str,
    advance: Callable[[int], None],
    carry: Carry = map,
) -> dict[str, Any]:
    """Encode a split into its file, a block at a time; `told` names it in errors, and `carry` is `map`, or one that has
    it done elsewhere.

    Returns what was counted.
    """
    kind = TAGS if examples.labels.dtype == object else pa.from_numpy_dtype(examples.labels.dtype)
    if examples.labels.ndim > 1:
        kind = pa.list_(kind, examples.labels.shape[1])
    figures = {"examples": len(examples), "tokens": 0, "longest": 0, "truncated": 0}
    if encoder.by_words:
        figures |= {"words": 0, "unseen_words": 0}
    with writing_rows(folder, name, _schema(encoder, kind)) as writer:
        encode = partial(_encode_labelled, encoder=encoder, kind=kind, name=told)
        for encoded in carry(encode, _labelled_blocks(examples)):
            writer.write_batch(encoded.rows)
            figures["tokens"] += encoded.tokens
            figures["longest"] = max(figures["longest"], encoded.longest)
            figures["truncated"] += encoded.truncated
            if encoder.by_words:
                figures["words"] += encoded.words
                figures["unseen_words"] += encoded.unseen_words
            advance(encoded.rows.num_rows)
    return figures


def _labelled_blocks(split: LabelledSplit) -> Iterator[LabelledBlock]:
    done = 0
    for block in batches(split.examples(), BLOCK_CHARACTERS, characters_of, BLOCK_EXAMPLES):
        yield block, split.labels[done : done + len(block)]
        done += len(block)


def _encode_labelled(block: LabelledBlock, encoder: TextEncoder, kind: pa.DataType, name: str) -> "EncodedBlock":
    examples, labels = block
    missing = unlabelled(labels)
    if labels.dtype == object:
        tags = [None if none else each for each, none in zip(labels, missing, strict=True)]
        return encode_block(examples, encoder, pa.array(tags, kind), name)
    if labels.ndim == 1:
        return encode_block(examples, encoder, pa.array(labels, kind, mask=missing), name)
    rows = pa.array(labels.ravel(), kind.value_type)
    return encode_block(
        examples, encoder, pa.FixedSizeListArray.from_arrays(rows, type=kind, mask=pa.array(missing)), name
    )


class EncodedBlock(NamedTuple):
    """Encoded examples as rows of such a file, and what was counted of them: the truncated, tokens in all and at most.

    Where each word has a label, all words, and those that have no token are counted as well.
    """

    rows: pa.RecordBatch
    truncated: int
    tokens: int
    longest: int
    words: int = 0
    unseen_words: int = 0


def encode_block(block: list[Example], encoder: TextEncoder, labels: pa.Array, name: str) -> EncodedBlock:
    """Encode some examples. Raises `RecordError` if the tokenizer gives no token for one of them; `name` is their
    set's.
    """
    encodings = encoder.encode([example.texts for example in block])
    lengths = np.array([len(each.input_ids) for each in encodings])
    if not lengths.all():
        example = block[int(np.argmin(lengths))].id
        raise RecordError(
            f"data set {name}: the tokenizer gives no token for the text of example {example!r}; leave it out"
        )
    schema = _schema(encoder, labels.type)
    columns = [_lists(encodings, each, LISTS[each], lengths) for each in LISTS if each in schema.names]
    columns = [pa.array([example.id for example in block], pa.string()), *columns, labels]
    counts = (sum(each.truncated for each in encodings), int(lengths.sum()), int(lengths.max()))
    if not encoder.by_words:
        return EncodedBlock(pa.record_batch(columns, schema=schema), *counts)
    seen = np.array([np.count_nonzero(each.first_tokens != UNSEEN) for each in encodings])
    if not seen.all():
        example = block[int(np.argmin(seen))].id
        why = (
            "the last word is longer than data.max_length, and texts are cut on the left; raise it, or leave the "
            "example out"
            if encodings[int(np.argmin(seen))].truncated
            else "the tokenizer gives no token for any word; leave it out"
        )
        raise RecordError(f"data set {name}: of example {example!r}, no word can have a label: {why}")
    words = np.array([len(example.texts) for example in block])
    columns.append(_lists(encodings, FIRST_TOKENS, pa.int32(), words))
    return EncodedBlock(
        pa.record_batch(columns, schema=schema), *counts, int(words.sum()), int(words.sum() - seen.sum())
    )


def _schema(encoder: TextEncoder, labels: pa.DataType) -> pa.Schema:
    lists = {name: kind for name, kind in LISTS.items() if name == "input_ids" or encoder.has_types}
    fields = [pa.field("id", pa.string()), *(pa.field(name, pa.list_(kind)) for name, kind in lists.items())]
    words = [pa.field(FIRST_TOKENS, pa.list_(pa.int32()))] if encoder.by_words else []
    return pa.schema([*fields, pa.field("labels", labels), *words])


def unlabelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Which examples have no label."""
    if labels.dtype == object:
        return np.array([not len(each) for each in labels], dtype=np.bool_)
    if labels.ndim > 1:
        labels = labels[:, 0]
    missing: NDArray[np.bool_] = np.isnan(labels) if labels.dtype.kind == "f" else labels < 0
    return missing


def count_labels(
    labels: NDArray[Any], classes: list[str] | None, seen: NDArray[np.bool_] | None = None
) -> dict[str, Any]:  # fmt: skip
    """How many examples are labelled; how many, or how many words, of each class, or the numbers' mean and range.

    Of the words of labelled examples, those are counted that are `seen`, of shape [words]; without it all.
    """
    known = labels[~unlabelled(labels)]
    if classes is not None:
        ids = all_words(known) if labels.dtype == object else known
        if seen is not None:
            ids = ids[seen]
        counts = np.bincount(ids, minlength=len(classes)) if ids.ndim == 1 else ids.sum(axis=0, dtype=np.int64)
        return {"labelled": len(known), "class_counts": {name: int(n) for name, n in zip(classes, counts, strict=True)}}
    if not len(known):
        return {"labelled": 0, "target": None}
    return {
        "labelled": len(known),
        "target": {"mean": float(known.mean()), "min": float(known.min()), "max": float(known.max())},
    }


def _lists(encodings: list[Encoding], name: str, kind: pa.DataType, lengths: NDArray[np.int64]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([getattr(each, name) for each in encodings])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


@contextmanager
def encode_files(
    data: LabelledDataConfig,
    source: SplitSource,
    encoder: TextEncoder,
    classes: list[str] | None,
    progress: Progress,
) -> Iterator[EncodedSet]:
    """The examples of some files, named as training files by `data`, as the test split of a set; it lasts for the
    block.

    Raises `CorpusError` and `RecordError` as reading training data does: for a missing column, labels that are none of
    the `classes`, and files without a label.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        parts = [fetch_part(part, Path(folder)) for part in source.parts[TRAIN]]
        check_columns(data, {TRAIN: parts})
        with progress.bar(f"read {data.name}", None, "row") as bar:
            scan = scan_rows(data, TEST, parts, False, bar.advance)
        require_examples(data, TEST, scan, scan.codes != BAD)
        labels = KINDS[data.task].find(data, scan.values, None, len(scan.codes))
        split = read_split(data, labels, TEST, scan)
        labelled = int((~unlabelled(split.labels)).sum())
        if not labelled:
            names = ", ".join(part.name for part in parts)
            raise CorpusError(
                f"{names}: no example has a label, so that nothing can be measured; `predict` predicts them"
            )
        with progress.bar(f"encode {data.name}", len(split), "example") as bar:
            figures = write_split(Path(folder), TEST, split, encoder, data.name, bar.advance)
        details = {
            "name": data.name,
            "task": data.task,
            "classes": classes,
            "text_columns": data.text_columns,
            "label_column": ", ".join(data.columns_of_labels),
            "max_length": encoder.max_length,
            "pad_id": encoder.pad_id,
            "vocab_size": encoder.vocab_size,
            "splits": {TEST: {**figures, **scan.bad.told(), "labelled": labelled}},
            "tokenizer": encoder.digest,
            "source": {"identity": source.identity[TRAIN], "validation_cut": False},
        }
        yield EncodedSet(
            details, {TEST: open_split(open_rows(Path(folder, f"{TEST}{ENDING}")), encoder.pad_id)}, encoder.pad_id
        )
