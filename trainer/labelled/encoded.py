"""Encoded labelled data, as training reads it.

train.arrow  validation.arrow  test.arrow     Arrow IPC files, uncompressed, mapped into memory
    id              string
    input_ids       list<int32>
    token_type_ids  list<int8>, where the model knows token types
    labels          int64 class ids, float64 numbers or, of several labels, an int8 for each class; null where unlabelled
    first_tokens    list<int32>, where each word has a label: the place of its first token, -1 if it has none; `labels` are then
                    list<int32>, the id of each word's class
tokenizer.json, tokenizer_config.json …       as `AutoTokenizer.from_pretrained` reads them
"""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from trainer.common.errors import ArtifactError
from trainer.labelled.encoded_splits import EncodedSplit, open_split
from trainer.store.manifest import Manifest, fetch_made, read_manifest
from trainer.store.storage import Store

KIND = "encoded"
ENDING = ".arrow"


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
    splits = {s: open_split(open_rows(fetch_made(store, key, name, digests[name])), pad_id) for s, name in names.items()}
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
