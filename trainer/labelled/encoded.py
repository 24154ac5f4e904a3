"""Encoded labelled data, as training reads it.

train.arrow  validation.arrow  test.arrow     Arrow IPC files, uncompressed, mapped into memory
    id              string
    input_ids       list<int32>
    token_type_ids  list<int8>, where the model knows token types
    labels          int64 class ids, float64 numbers or, of several labels, an int8 for each class; null where unlabelled
tokenizer.json, tokenizer_config.json …       as `AutoTokenizer.from_pretrained` reads them
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError, RecordError
from trainer.labelled.data import Example, LabelledSplit
from trainer.labelled.text_encoder import Encoding, TextEncoder
from trainer.store.manifest import Manifest, fetch_made, read_manifest
from trainer.store.storage import Store

KIND = "encoded"
ENDING = ".arrow"
LISTS = {"input_ids": pa.int32(), "token_type_ids": pa.int8()}
LabelledBlock = tuple[list[Example], NDArray[Any]]
"""Some examples, and their labels."""

Carry = Callable[[Callable[[LabelledBlock], "EncodedBlock"], Iterable[LabelledBlock]], Iterable["EncodedBlock"]]

BLOCK_CHARACTERS, BLOCK_EXAMPLES = 2**20, 1024
"""Text that is encoded, and written, at a time."""


class EncodedSplit:
    """The examples of one split.

    `lengths`: tokens of each example, int64 [N]. `labels`: int64 or float64 [N], or int8 [N, C], or None if any example has
    none.
    """

    def __init__(self, table: pa.Table, pad_id: int) -> None:
        self._names, self._pad_id = table["id"], pad_id
        self._columns = {name: Lists(table[name]) for name in LISTS if name in table.column_names}
        self.lengths = self._columns["input_ids"].lengths
        labels = table["labels"]
        self.labels: NDArray[Any] | None = None if labels.null_count else _as_array(labels)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ids(self) -> list[str]:
        """The names of the examples, in order."""
        names: list[str] = self._names.to_pylist()
        return names

    def read(self, places: Sequence[int] | NDArray[np.int64], pad_to: int | None = None) -> dict[str, NDArray[np.int64]]:
        """Some examples, padded on the right to the longest of them, or to `pad_to` tokens.

        Returns int64 arrays of shape [B, T]: input_ids, attention_mask, and token_type_ids where they are stored. Raises
        `ValueError` if an example is longer than `pad_to`.
        """
        places = np.asarray(places, dtype=np.int64)
        lengths = self.lengths[places]
        width = int(lengths.max()) if pad_to is None else pad_to
        if (lengths > width).any():
            raise ValueError(f"an example has {int(lengths.max())} tokens, beyond pad_to {width}")
        inputs = {
            name: column.read(places, width, self._pad_id if name == "input_ids" else 0)
            for name, column in self._columns.items()
        }
        return {**inputs, "attention_mask": (np.arange(width) < lengths[:, None]).astype(np.int64)}


class EncodedSet(NamedTuple):
    """A published data set: its manifest's details, its splits, and the id that pads."""

    details: dict[str, Any]
    splits: dict[str, EncodedSplit]
    pad_id: int


def open_encoded(store: Store, key: str) -> EncodedSet:
    """Map a published data set. Raises `ArtifactError` if there is none, or it is damaged."""
    manifest = encoded_manifest(store, key)
    details, digests = manifest.details, manifest.digests()
    pad_id: int = details["pad_id"]
    names = {split: f"{split}{ENDING}" for split in details["splits"]}
    splits = {s: EncodedSplit(open_rows(fetch_made(store, key, name, digests[name])), pad_id) for s, name in names.items()}
    return EncodedSet(details, splits, pad_id)


def encoded_details(store: Store, key: str) -> dict[str, Any]:
    """What the manifest of a published data set says of it. Raises `ArtifactError` if there is none."""
    return encoded_manifest(store, key).details


def split_sizes(details: dict[str, Any]) -> dict[str, int]:
    """The number of examples of each split, from the manifest's details: no split is opened."""
    return {name: split["examples"] for name, split in details["splits"].items()}


def tokenizer_paths(store: Store, key: str) -> list[Path]:
    """The files that `AutoTokenizer.from_pretrained` needs beside a model. Raises `ArtifactError` if there is no such set."""
    digests = {name: sha for name, sha in encoded_manifest(store, key).digests().items() if not name.endswith(ENDING)}
    return [fetch_made(store, key, name, sha256) for name, sha256 in digests.items()]


def write_split(
    path: Path, split: LabelledSplit, encoder: TextEncoder, name: str, advance: Callable[[int], None], carry: Carry = map
) -> dict[str, int]:
    """Encode a split into an Arrow file, a block at a time; `carry` is `map`, or one that has it done elsewhere.

    Returns what was counted.
    """
    kind = pa.from_numpy_dtype(split.labels.dtype)
    if split.labels.ndim > 1:
        kind = pa.list_(kind, split.labels.shape[1])
    figures = {"examples": len(split), "tokens": 0, "longest": 0, "truncated": 0}
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _schema(encoder, kind)) as writer:
        for encoded in carry(partial(_encode_labelled, encoder=encoder, kind=kind, name=name), _labelled_blocks(split)):
            writer.write_batch(encoded.rows)
            figures["tokens"] += encoded.tokens
            figures["longest"] = max(figures["longest"], encoded.longest)
            figures["truncated"] += encoded.truncated
            advance(encoded.rows.num_rows)
    return figures


def _labelled_blocks(split: LabelledSplit) -> Iterator[LabelledBlock]:
    done = 0
    for block in in_blocks(split.examples(), BLOCK_EXAMPLES, BLOCK_CHARACTERS):
        yield block, split.labels[done : done + len(block)]
        done += len(block)


def _encode_labelled(block: LabelledBlock, encoder: TextEncoder, kind: pa.DataType, name: str) -> "EncodedBlock":
    examples, labels = block
    missing = unlabelled(labels)
    if labels.ndim == 1:
        return encode_block(examples, encoder, pa.array(labels, kind, mask=missing), name)
    rows = pa.array(labels.ravel(), kind.value_type)
    return encode_block(examples, encoder, pa.FixedSizeListArray.from_arrays(rows, type=kind, mask=pa.array(missing)), name)


class EncodedBlock(NamedTuple):
    """Encoded examples as rows of such a file, and what was counted of them: the truncated, tokens in all and at most."""

    rows: pa.RecordBatch
    truncated: int
    tokens: int
    longest: int


def encode_block(block: list[Example], encoder: TextEncoder, labels: pa.Array, name: str) -> EncodedBlock:
    """Encode some examples. Raises `RecordError` if the tokenizer gives no token for one of them; `name` is their set's."""
    encodings = encoder.encode([example.texts for example in block])
    lengths = np.array([len(each.input_ids) for each in encodings])
    if not lengths.all():
        example = block[int(np.argmin(lengths))].id
        raise RecordError(f"data set {name}: the tokenizer gives no token for the text of example {example!r}; leave it out")
    schema = _schema(encoder, labels.type)
    columns = [_lists(encodings, each, LISTS[each], lengths) for each in LISTS if each in schema.names]
    rows = pa.record_batch([pa.array([example.id for example in block], pa.string()), *columns, labels], schema=schema)
    return EncodedBlock(rows, sum(each.truncated for each in encodings), int(lengths.sum()), int(lengths.max()))


def _schema(encoder: TextEncoder, labels: pa.DataType) -> pa.Schema:
    lists = {name: kind for name, kind in LISTS.items() if name == "input_ids" or encoder.has_types}
    fields = [pa.field("id", pa.string()), *(pa.field(name, pa.list_(kind)) for name, kind in lists.items())]
    return pa.schema([*fields, pa.field("labels", labels)])


def unlabelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Which examples have no label."""
    if labels.ndim > 1:
        labels = labels[:, 0]
    missing: NDArray[np.bool_] = np.isnan(labels) if labels.dtype.kind == "f" else labels < 0
    return missing


def count_labels(labels: NDArray[Any], classes: list[str] | None) -> dict[str, Any]:
    """How many examples are labelled; how many of each class, or the numbers' mean and range."""
    known = labels[~unlabelled(labels)]
    if classes is not None:
        counts = np.bincount(known, minlength=len(classes)) if known.ndim == 1 else known.sum(axis=0, dtype=np.int64)
        return {"labelled": len(known), "class_counts": {name: int(n) for name, n in zip(classes, counts, strict=True)}}
    if not len(known):
        return {"labelled": 0, "target": None}
    return {
        "labelled": len(known),
        "target": {"mean": float(known.mean()), "min": float(known.min()), "max": float(known.max())},
    }


def _as_array(labels: pa.ChunkedArray) -> NDArray[Any]:
    """A column without nulls as an array of shape [N], or, of lists of one length, [N, C]."""
    values: NDArray[Any]
    if not pa.types.is_fixed_size_list(labels.type):
        values = labels.to_numpy()
        return values
    values = labels.combine_chunks().flatten().to_numpy()
    return values.reshape(len(labels), labels.type.list_size)


class Lists:
    """A column of lists as numpy sees it: one array of values for each record batch, and where each list lies."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self._values = [chunk.values.to_numpy() for chunk in column.chunks]
        self._chunks = np.repeat(np.arange(len(offsets)), [len(chunk) for chunk in column.chunks])
        self._starts = np.concatenate([each[:-1] for each in offsets]).astype(np.int64)
        self.lengths = np.concatenate([np.diff(each) for each in offsets]).astype(np.int64)

    def read(self, places: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Lists in the rows of an array of this width, of shape [B, width]."""
        rows = np.full((len(places), width), fill, dtype=np.int64)
        wanted = zip(self._chunks[places], self._starts[places], self.lengths[places], strict=True)
        for row, (chunk, start, length) in zip(rows, wanted, strict=True):
            row[:length] = self._values[chunk][start : start + length]
        return rows


def encoded_manifest(store: Store, key: str) -> Manifest:
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise ArtifactError(
            f"{store.path(key)} holds no encoded data set; encode it first: run its fine-tuning job again, which reuses what "
            "is trained"
        )
    return manifest


def open_rows(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def in_blocks(examples: Iterable[Example], most: int, characters: int) -> Iterator[list[Example]]:
    """Examples in lists that hold a limited amount of text."""
    block: list[Example] = []
    size = 0
    for example in examples:
        block.append(example)
        size += sum(map(len, example.texts))
        if size >= characters or len(block) >= most:
            yield block
            block, size = [], 0
    if block:
        yield block


def _lists(encodings: list[Encoding], name: str, kind: pa.DataType, lengths: NDArray[np.int64]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([getattr(each, name) for each in encodings])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))
