"""Encoded sets: data in splits as training reads it, and the step that makes one of what its kind writes.

train.arrow  validation.arrow  test.arrow     Arrow IPC files, uncompressed, mapped into memory
tokenizer.json, tokenizer_config.json …       as `AutoTokenizer.from_pretrained` reads them
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.bad_records import check_budget
from trainer.common.errors import ArtifactError, TokenizerError
from trainer.config.chat import ConversationsConfig
from trainer.config.labelled import LabelledDataConfig
from trainer.data.sources import forgetting_changed
from trainer.data.splits import SplitSource
from trainer.models.pretrained import Checkpoint
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records.basis import labelled_digests, without_test
from trainer.records.steps import CONTENTS, Explains, Sources, Step, publish
from trainer.store.manifest import Manifest, digest_file, fetch_made, fingerprint, name_of, read_manifest
from trainer.store.storage import Store

KIND = "encoded"

IGNORED = -100
"""Stands for the label of a token that has none, as in `torch.nn.functional.cross_entropy`."""

ENDING = ".arrow"

Split = TypeVar("Split")


class SplitSet(NamedTuple, Generic[Split]):
    """A published data set: its manifest's details, its splits, and the id that pads."""

    details: dict[str, Any]
    splits: dict[str, Split]
    pad_id: int


def open_set(store: Store, key: str, open_split: Callable[[pa.Table, dict[str, Any], int], Split]) -> SplitSet[Split]:
    """Map a published data set; a split is opened by its rows, what the details say of it, and the id that pads.

    Raises `ArtifactError` if there is none, or it is damaged.
    """
    manifest = encoded_manifest(store, key)
    details, digests, splits = manifest.details, manifest.digests(), {}
    for split, told in details["splits"].items():
        path = fetch_made(store, key, f"{split}{ENDING}", digests[f"{split}{ENDING}"])
        splits[split] = open_split(open_rows(path), told, details["pad_id"])
    return SplitSet(details, splits, details["pad_id"])


def encoded_details(store: Store, key: str) -> dict[str, Any]:
    """What the manifest of a published data set says of it. Raises `ArtifactError` if there is none."""
    return encoded_manifest(store, key).details


def split_sizes(details: dict[str, Any]) -> dict[str, int]:
    """The number of examples of each split, from the manifest's details: no split is opened."""
    return {name: split["examples"] for name, split in details["splits"].items()}


def tokenizer_paths(store: Store, key: str) -> list[Path]:
    """The files that `AutoTokenizer.from_pretrained` needs beside a model. Raises `ArtifactError` if there is no such
    set.
    """
    digests = {name: sha for name, sha in encoded_manifest(store, key).digests().items() if not name.endswith(ENDING)}
    return [fetch_made(store, key, name, sha256) for name, sha256 in digests.items()]


def require_tokenizer(found: Checkpoint, details: Mapping[str, Any]) -> None:
    """Raise `TokenizerError` if a model has another tokenizer than the one that encoded the set with these details."""
    carried = found.files.get(TOKENIZER_FILE)
    if carried is not None and carried != details["tokenizer_sha256"]:
        raise TokenizerError(f"{found.key} has another tokenizer than the one that encoded this data")


def encoded_manifest(store: Store, key: str) -> Manifest:
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise ArtifactError(
            f"{store.path(key)} holds no encoded data set; encode it first: run its fine-tuning job again, which "
            "reuses what is trained"
        )
    return manifest


def open_rows(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


@contextmanager
def writing_rows(folder: Path, split: str, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    """The file of a split, to be written for the length of the block."""
    with pa.OSFile(str(folder / f"{split}{ENDING}"), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer


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


class Encoder(Protocol):
    """What an encoder of any kind has: `digest` names the files of its tokenizer, which `save` writes into a folder."""

    @property
    def digest(self) -> str: ...

    def save(self, folder: Path) -> None: ...


PLACES = {"name", "path", "subset", "train", "validation", "test", "delimiter", "quoting", "max_bad_records"}
"""Settings that say where records lie, or are part of what the files are known by."""


def in_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their places in a configuration."""
    return {f"data.{name}": value for name, value in options.items()}


def encoded_step(
    store: Store,
    data: LabelledDataConfig | ConversationsConfig,
    source: SplitSource,
    encoder: Encoder,
    options: Mapping[str, Any],
    write: Callable[[Path], dict[str, Any]],
) -> Step:
    """The step that encodes what a job reads of its files, by an encoder: `write` writes the splits into a folder, and
    returns what the manifest says of them.

    A run is named by all of it but the test split.
    """
    cut = data.validation_fraction if source.cut else None
    told = frozenset({"data.quoting"})

    def recipe_of(identity: Any) -> dict[str, Any]:
        contents = {"text": fingerprint(identity)}
        return {
            "data.task": data.task,
            **options,
            "data.validation_fraction": cut,
            "the model's tokenizer": encoder.digest,
            CONTENTS: contents,
        }

    trained = name_of(recipe_of(without_test(source.identity)), {}, told)
    paths = {split: [part.path for part in parts] for split, parts in source.parts.items()}

    def build(step: Step) -> Manifest:
        with forgetting_changed(store), store.staging(key=step.key) as folder:
            encoder.save(folder)
            details = write(folder)
            return publish(step, folder, {
                **details,
                "tokenizer_sha256": digest_file(folder / TOKENIZER_FILE).sha256,
                "tokenizer": encoder.digest,
                "source": {"identity": source.identity, "validation_cut": source.cut, "paths": paths},
            })  # fmt: skip

    def accept(manifest: Manifest) -> None:
        for split, found in manifest.details["splits"].items():
            check_budget(f"data set {data.name!r}, {split} split", data.max_bad_records, found)

    def recall_sources(key: str, manifest: Manifest) -> Sources:
        told = manifest.details["source"]
        return labelled_digests(told["identity"], told["paths"])

    return Step(
        store, KIND, KIND, data.name, recipe_of(source.identity), build, told=told, identity=trained, accept=accept,
        explains=Explains(
            sources=lambda: labelled_digests(source.identity, paths), recall_sources=recall_sources, by_content=True,
        ),
    )  # fmt: skip
