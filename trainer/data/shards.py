"""Token shards: raw little-endian ids, with an index of document starts.

    shard-00000.bin        uint16 or uint32 token ids, one end-of-document id after each document
    shard-00000.idx        u64 token offsets: the start of each document, and the end of the last
    shard-00000.sums       checksums of the blocks of shard-00000.bin, verified as they are read
    validation-00000.*     the same for the held-out documents of the same pieces
    shard-00000.json       the shard's record, written after its files: its source and its contents

A document of more than a few MiB is stored in parts, each with its own index entry; only the last part is followed by
the end-of-document id.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from trainer.common.bad_records import BadRecords
from trainer.common.errors import TokenizerError
from trainer.data.encoders import Encode, Ids
from trainer.data.pieces import blocks_of
from trainer.data.readers import Document, OnBad
from trainer.data.shard_files import ShardFiles
from trainer.models.tokenizer import HeldOutText, TokenizerInfo, byte_lengths
from trainer.store.checked_files import write_sums
from trainer.store.details import Totals
from trainer.store.manifest import FileRecord, Manifest, digest_file, require_manifest, seal, unseal
from trainer.store.names import Count
from trainer.store.storage import Store, json_bytes

KIND = "shards"
FORMAT = 5
TRAIN, VALIDATION = "shard", "validation"
ENDINGS = ("bin", "idx", "sums")
BATCH_BYTES = 2 * 2**20
BYTES_PER_TOKEN = 4
"""For estimates before tokenization: typical of English text with a vocabulary of some tens of thousands."""


class HasText(Protocol):
    """A document, or anything else with a UTF-8 text."""

    @property
    def text(self) -> bytes: ...


Item = TypeVar("Item")


class ShardRecord(Totals):
    """One shard: its counts, the fingerprint of its source, and its files.

    Byte counts are of the documents' text. `validation_token_bytes` is the sum of the bytes that each held-out token
    represents by itself. `validation_digest` identifies the held-out text, whatever the tokenizer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: Count
    fingerprint: str
    validation_digest: str = Field(pattern=r"^[0-9a-f]{32}$")
    skipped: list[str] = Field(default=[], exclude_if=lambda value: not value)
    """The first bad records, each with its location and error."""
    files: list[FileRecord]

    @model_validator(mode="after")
    def _has_its_files(self) -> Self:
        named = [file.name for file in self.files]
        expected = [shard_file(side, self.number, ending) for side in (TRAIN, VALIDATION) for ending in ENDINGS]
        if sorted(named) != sorted(expected):
            raise ValueError(f"shard {self.number} lists the files {named}, expected {expected}")
        return self


class ShardSet(NamedTuple):
    """A published corpus: the key of its tokenizer, the details of its manifest, and the tokens of each shard."""

    key: str
    corpus: str
    tokenizer: str
    details: dict[str, Any]
    train: ShardFiles
    validation: ShardFiles
    document_index: list[FileRecord]
    """The index files of the training shards: where each document begins."""


def shard_file(side: str, number: int, ending: str) -> str:
    return f"{side}-{number:05d}.{ending}"


def record_file(number: int) -> str:
    return f"{TRAIN}-{number:05d}.json"


def write_record(store: Store, key: str, record: ShardRecord) -> None:
    """Write a shard's record with its own checksum, because it is used before any manifest lists it."""
    store.write_bytes(f"{key}/{record_file(record.number)}", _record_bytes(record))


def read_record(store: Store, key: str) -> ShardRecord | None:
    """The record in a file, or None if it is missing or differs by even one byte from what this code writes."""
    try:
        raw = store.read_bytes(key)
        record = ShardRecord.model_validate(unseal(json.loads(raw)))
    except (FileNotFoundError, AttributeError, RecursionError, ValueError):
        return None
    return record if raw == _record_bytes(record) else None


def _record_bytes(record: ShardRecord) -> bytes:
    return json_bytes(seal(record.model_dump()))


def token_dtype(max_id: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 (little-endian) that holds the largest token id."""
    return np.dtype("<u2") if max_id < 2**16 else np.dtype("<u4")


def is_held_out(text: bytes, fraction: float) -> bool:
    """Whether a document belongs to the validation split; its content decides, so exact duplicates stay together."""
    draw = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return draw < fraction * 2.0**64


def build_shard(
    folder: Path,
    number: int,
    name: str,
    raw_bytes: int,
    documents: Callable[[OnBad], Iterator[Document]],
    max_bad_records: int,
    tokenizer: TokenizerInfo,
    encode: Encode,
    validation_fraction: float,
) -> ShardRecord:
    """Tokenize documents into the files of one shard, in a folder. Memory use does not depend on their number."""
    bad = BadRecords(max_bad_records)
    held_out = HeldOutText(byte_lengths(tokenizer.json))
    with ExitStack() as open_files:
        sides = {
            side: open_files.enter_context(closing(_SideWriter(folder, side, number, tokenizer)))
            for side in (TRAIN, VALIDATION)
        }
        for batch in batches(documents(bad.add), BATCH_BYTES, text_bytes):
            for document, ids in zip(batch, _encode_batch(encode, batch), strict=True):
                side, other = (TRAIN, VALIDATION)
                if is_held_out(document.text, validation_fraction):
                    side, other = other, side
                sides[other].end()
                sides[side].add(document, ids)
                if side == VALIDATION:
                    held_out.add(document.text, ids)
    return ShardRecord(
        number=number,
        fingerprint=name,
        raw_bytes=raw_bytes,
        documents=sides[TRAIN].documents,
        tokens=sides[TRAIN].tokens,
        text_bytes=sides[TRAIN].text_bytes,
        validation_documents=sides[VALIDATION].documents,
        validation_tokens=sides[VALIDATION].tokens,
        validation_bytes=held_out.text_bytes,
        validation_token_bytes=held_out.token_bytes,
        validation_digest=held_out.digest,
        bad_records=bad.count,
        skipped=bad.first,
        files=[digest_file(path) for writer in sides.values() for path in writer.paths],
    )


def shards_manifest(store: Store, key: str) -> Manifest:
    """The manifest of a published shard set; raises `ArtifactError` if there is none."""
    return require_manifest(store, key, KIND, "holds no published shards; run prepare-data first")


def open_shards(store: Store, key: str) -> ShardSet:
    """Open a published shard set, reading only its manifest; raises `ArtifactError` if there is none."""
    manifest = shards_manifest(store, key)
    dtype = np.dtype(manifest.details["dtype"])
    records = {record.name: record for record in manifest.files}

    def files(side: str) -> ShardFiles:
        tokens, sums = (
            [records[shard_file(side, number, ending)] for number in range(manifest.details["num_shards"])]
            for ending in ("bin", "sums")
        )
        return ShardFiles(store, key, tokens, sums, dtype)

    index = [records[shard_file(TRAIN, number, "idx")] for number in range(manifest.details["num_shards"])]
    tokenizer = manifest.inputs["tokenizer"].key
    return ShardSet(
        key, manifest.details["corpus"], tokenizer, manifest.details, files(TRAIN), files(VALIDATION), index
    )


class _SideWriter:
    """Writes one side of a shard to its .bin file; on closing, writes its index and its blocks' checksums."""

    def __init__(self, folder: Path, side: str, number: int, tokenizer: TokenizerInfo) -> None:
        self.paths = [folder / shard_file(side, number, ending) for ending in ENDINGS]
        self._file = open(self.paths[0], "wb")  # noqa: SIM115 - open while the shard is being built
        self._dtype = token_dtype(tokenizer.max_id)
        self._max_id = tokenizer.max_id
        self._eos = np.array([tokenizer.eos_id], dtype=self._dtype).tobytes()
        self._starts = array("Q", [0])
        self._goes_on = False
        self.tokens = self.text_bytes = 0

    @property
    def documents(self) -> int:
        return len(self._starts) - 1

    def add(self, document: Document, ids: Ids) -> None:
        if len(ids) and int(ids.max()) > self._max_id:
            raise TokenizerError(
                f"the engine gave token id {int(ids.max())}; the tokenizer's largest is {self._max_id}"
            )
        self._file.write(ids.astype(self._dtype).tobytes())
        self.tokens += len(ids)
        self.text_bytes += len(document.text)
        self._starts.append(self.tokens)
        self._goes_on = True
        if document.ends:
            self.end()

    def end(self) -> None:
        """End the last document if it has not ended, so that the next addition does not continue it."""
        if self._goes_on:
            self._file.write(self._eos)
            self.tokens += 1
            self._starts[-1] = self.tokens
            self._goes_on = False

    def close(self) -> None:
        self._file.close()
        tokens, index, sums = self.paths
        np.array(self._starts, dtype="<u8").tofile(index)
        write_sums(tokens, sums)


def batches(
    items: Iterable[Item], enough: int, size: Callable[[Item], int], most: int | None = None
) -> Iterator[list[Item]]:
    """Group items into batches whose sizes sum to at least `enough`, or that have `most` items."""
    batch: list[Item] = []
    tokens = 0
    for item in items:
        batch.append(item)
        tokens += size(item)
        if tokens >= enough or len(batch) == most:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch


def text_bytes(document: HasText) -> int:
    """The bytes of a document's text."""
    return len(document.text)


def _encode_batch(encode: Encode, batch: Sequence[Document]) -> list[Ids]:
    """The ids of each document. Large documents are encoded in blocks; their ids equal those of the whole, except for
    one extra token a block if the tokenizer puts a blank before each text.
    """
    blocks = [list(blocks_of(document.text, BATCH_BYTES)) for document in batch]
    ids = iter(encode([block for document in blocks for block in document]))
    return [next(ids) if len(document) == 1 else np.concatenate([next(ids) for _ in document]) for document in blocks]
