"""Encoded sets: splits in the form that training reads, and the step that builds such a set.

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
from trainer.common.errors import TokenizerError
from trainer.config.chat import ConversationsConfig
from trainer.config.labelled import LOCATION, LabelledDataConfig
from trainer.data.sources import forgetting_changed
from trainer.data.splits import SplitSource
from trainer.models.pretrained import Checkpoint
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records.basis import labelled_digests, without_test
from trainer.records.steps import CONTENTS, Explains, Sources, Step, publish
from trainer.store.artifact_files import fetch_made
from trainer.store.manifest import Manifest, digest_file, fingerprint, name_of, require_manifest
from trainer.store.storage import Store

KIND = "encoded"

IGNORED = -100
"""The label of tokens without one, as in `torch.nn.functional.cross_entropy`."""

ENDING = ".arrow"

Split = TypeVar("Split")


class SplitSet(NamedTuple, Generic[Split]):
    """A published data set: the details of its manifest, its splits, and the padding id."""

    details: dict[str, Any]
    splits: dict[str, Split]
    pad_id: int


def open_set(store: Store, key: str, open_split: Callable[[pa.Table, dict[str, Any], int], Split]) -> SplitSet[Split]:
    """Map a published data set into memory; `open_split` gets a split's rows, its details, and the padding id.

    Raises `ArtifactError` if the set is missing or damaged.
    """
    manifest = encoded_manifest(store, key)
    details, digests, splits = manifest.details, manifest.digests(), {}
    for split, facts in details["splits"].items():
        path = fetch_made(store, key, f"{split}{ENDING}", digests[f"{split}{ENDING}"])
        splits[split] = open_split(open_rows(path), facts, details["pad_id"])
    return SplitSet(details, splits, details["pad_id"])


def encoded_details(store: Store, key: str) -> dict[str, Any]:
    """The details in the manifest of a published data set; raises `ArtifactError` if there is none."""
    return encoded_manifest(store, key).details


def split_sizes(details: dict[str, Any]) -> dict[str, int]:
    """The number of examples of each split, from the manifest's details; no split is opened."""
    return {name: split["examples"] for name, split in details["splits"].items()}


def tokenizer_paths(store: Store, key: str) -> list[Path]:
    """The tokenizer files of a set, for `AutoTokenizer.from_pretrained`; raises `ArtifactError` if it is missing."""
    digests = {name: sha for name, sha in encoded_manifest(store, key).digests().items() if not name.endswith(ENDING)}
    return [fetch_made(store, key, name, sha256) for name, sha256 in digests.items()]


def require_tokenizer(found: Checkpoint, details: Mapping[str, Any]) -> None:
    """Raise `TokenizerError` if the model's tokenizer is not the one that encoded the set with these details."""
    carried = found.files.get(TOKENIZER_FILE)
    if carried is not None and carried != details["tokenizer_sha256"]:
        raise TokenizerError(f"the tokenizer of {found.key} is not the one that encoded this data")


def encoded_manifest(store: Store, key: str) -> Manifest:
    return require_manifest(
        store, key, KIND,
        "holds no encoded data set; run its fine-tuning job again to encode it (finished training is reused)",
    )  # fmt: skip


def open_rows(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


@contextmanager
def writing_rows(folder: Path, split: str, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    """Open the file of a split for writing."""
    with pa.OSFile(str(folder / f"{split}{ENDING}"), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer


class Lists:
    """A list column as numpy: one array of values for each record batch, and the location of each list."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self._values = [chunk.values.to_numpy() for chunk in column.chunks]
        self._chunks = np.repeat(np.arange(len(offsets)), [len(chunk) for chunk in column.chunks])
        self._starts = np.concatenate([each[:-1] for each in offsets]).astype(np.int64)
        self.lengths = np.concatenate([np.diff(each) for each in offsets]).astype(np.int64)

    def read(self, places: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """The lists at these places, padded with `fill`; shape [B, width]."""
        rows = np.full((len(places), width), fill, dtype=np.int64)
        wanted = zip(self._chunks[places], self._starts[places], self.lengths[places], strict=True)
        for row, (chunk, start, length) in zip(rows, wanted, strict=True):
            row[:length] = self._values[chunk][start : start + length]
        return rows


class Encoder(Protocol):
    """An encoder of any kind: `digest` identifies the files of its tokenizer, `save` writes them into a folder."""

    @property
    def digest(self) -> str: ...

    def save(self, folder: Path) -> None: ...


IDENTIFIED = {*LOCATION, "delimiter", "quoting", "max_bad_records"}
"""Settings that locate records or are already part of the files' identity."""


def in_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, named as in a configuration."""
    return {f"data.{name}": value for name, value in options.items()}


def encoded_step(
    store: Store,
    data: LabelledDataConfig | ConversationsConfig,
    source: SplitSource,
    encoder: Encoder,
    options: Mapping[str, Any],
    write: Callable[[Path], dict[str, Any]],
) -> Step:
    """The step that encodes a job's data: `write` writes the splits into a folder and returns the manifest's details.

    A run's identity covers all of it except the test split.
    """
    cut = data.validation_fraction if source.cut else None
    recorded_only = frozenset({"data.quoting"})

    def recipe_of(identity: Any) -> dict[str, Any]:
        contents = {"text": fingerprint(identity)}
        return {
            "data.task": data.task,
            **options,
            "data.validation_fraction": cut,
            "the model's tokenizer": encoder.digest,
            CONTENTS: contents,
        }

    trained = name_of(recipe_of(without_test(source.identity)), {}, recorded_only)
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
        recorded = manifest.details["source"]
        return labelled_digests(recorded["identity"], recorded["paths"])

    return Step(
        store, KIND, KIND, data.name, recipe_of(source.identity), build, recorded_only=recorded_only,
        identity=trained, accept=accept,
        explains=Explains(
            sources=lambda: labelled_digests(source.identity, paths), recall_sources=recall_sources, by_content=True,
        ),
    )  # fmt: skip
