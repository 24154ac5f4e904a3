"""What a worker process does: it builds shards, and publishes each. All that it imports delays its beginning."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from typing import Any

from trainer.common.process import die_with_parent, return_large_buffers
from trainer.common.stopping import SIGNALS, StopRequested
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import TransformConfig
from trainer.corpus.curated import Decided, read_curated
from trainer.corpus.engines import ENGINES, Encode
from trainer.corpus.pieces import Piece
from trainer.corpus.readers import Document, OnBad
from trainer.corpus.shards import BYTES_PER_TOKEN, ShardRecord, build_shard, record_file, token_dtype, write_record
from trainer.engines.executors import Advance
from trainer.models.tokenizer import TokenizerInfo, load_tokenizer
from trainer.store import roots
from trainer.store.storage import Store


@dataclass(frozen=True)
class Recipe:
    """What all shards of a set share."""

    url: str
    key: str
    corpus: CorpusConfig
    tokenizer_key: str
    engine: str
    validation_fraction: float
    transform: TransformConfig | None = None


@dataclass(frozen=True)
class ShardWork:
    """One shard to build: its number, the fingerprint of what it is made from, its pieces, and what was decided of each."""

    number: int
    fingerprint: str
    pieces: tuple[Piece, ...]
    decided: tuple[Decided | None, ...] = ()

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)


_done: Any = None
"""In a worker: the count of raw bytes done, shared with the parent."""

_broken_off: Any = None
"""In a worker: whether the parent wants no more of it."""


def begin(parent: int, done: Any, broken_off: Any, seen: Sequence[str]) -> None:
    global _done, _broken_off
    die_with_parent(parent, signal.SIGKILL)
    return_large_buffers()
    for signum in SIGNALS:  # what asks the whole group to stop is acted on by the parent, which breaks this worker off
        signal.signal(signum, signal.SIG_IGN)
    roots.remember(seen)
    _done, _broken_off = done, broken_off


def tell_parent(size: int) -> None:
    """Count raw bytes as done. Raises `StopRequested` when this is broken off."""
    if _broken_off.value:
        raise StopRequested
    with _done.get_lock():
        _done.value += size


def load_encoder(url: str, tokenizer_key: str, engine: str) -> None:
    """Load what a worker needs for its first shard; it is kept for all."""
    with suppress(Exception):  # that the engine cannot take the tokenizer is found out, and told, elsewhere
        _encoder(url, tokenizer_key, engine)


@cache
def _encoder(url: str, tokenizer_key: str, engine: str) -> tuple[TokenizerInfo, Encode]:
    tokenizer = load_tokenizer(Store(url), tokenizer_key)
    return tokenizer, ENGINES[engine](tokenizer)


def build(recipe: Recipe, shard: ShardWork, advance: Advance) -> ShardRecord:
    """Build and publish a shard; `advance` is told of the raw bytes that are done."""
    store = Store(recipe.url)
    tokenizer, encode = _encoder(recipe.url, recipe.tokenizer_key, recipe.engine)
    about = shard.raw_bytes // BYTES_PER_TOKEN * token_dtype(tokenizer.max_id).itemsize
    with store.staging(about, f"{recipe.key}/{record_file(shard.number)}") as folder:
        documents = partial(shard_documents, recipe, shard, advance)
        record = build_shard(
            folder, shard.number, shard.fingerprint, shard.raw_bytes, documents, recipe.corpus.max_bad_records, tokenizer,
            encode, recipe.validation_fraction,
        )  # fmt: skip
        for file in record.files:
            store.put(folder / file.name, f"{recipe.key}/{file.name}")
    write_record(store, recipe.key, record)
    return record


def shard_documents(recipe: Recipe, shard: ShardWork, advance: Advance, on_bad: OnBad) -> Iterator[Document]:
    """The documents of a shard; `advance` is told of the bytes of each."""
    for piece, decided in zip_longest(shard.pieces, shard.decided):
        for document in read_curated(piece, recipe.corpus, on_bad, recipe.transform, decided):
            advance(len(document.text) + 1)
            yield document
