"""Shards built in parallel: by worker processes that end with their parent, or by whoever else carries them."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from trainer.common.process import die_with_parent, return_large_buffers
from trainer.common.progress import Bar
from trainer.common.stopping import SIGNALS, StopRequested, check_stop
from trainer.config.jobs import CorpusConfig
from trainer.corpus.engines import ENGINES, Encode
from trainer.corpus.shards import BYTES_PER_TOKEN, ShardRecord, build_shard, record_file, token_dtype, write_record
from trainer.corpus.sources import Piece
from trainer.corpus.tokenizer import TokenizerInfo, load_tokenizer
from trainer.engines.carriers import Advance, Carrier
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


@dataclass(frozen=True)
class ShardWork:
    """One shard to build: its number, the fingerprint of what it is made from, and its pieces."""

    number: int
    fingerprint: str
    pieces: tuple[Piece, ...]

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)


def build_shards(recipe: Recipe, missing: Sequence[ShardWork], carrier: Carrier, bar: Bar) -> Iterator[ShardRecord]:
    """Build and publish shards, the largest first. The first error, or a stop, breaks off the rest; finished shards stay."""
    waiting = iter(sorted(missing, key=lambda shard: shard.raw_bytes, reverse=True))
    pending = {carrier.submit(_build, recipe, shard) for shard in islice(waiting, carrier.most)}
    while pending:
        check_stop()
        finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        bar.reach(carrier.done)
        pending |= {carrier.submit(_build, recipe, shard) for shard in islice(waiting, len(finished))}
        for future in finished:
            yield future.result()


@contextmanager
def shard_workers(workers: int) -> Iterator[Carrier]:
    """Processes of this machine that build shards, for the length of a block; what they have not finished is broken off."""
    context = _Context()
    done, broken_off = context.Value("q", 0), context.Value("b", False)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(os.getpid(), done, broken_off)) as pool:
        try:
            yield _Pool(pool, done)
        finally:
            broken_off.value = True
            pool.shutdown(wait=True, cancel_futures=True)


class _Pool:
    """A `Carrier`."""

    most = None

    def __init__(self, pool: ProcessPoolExecutor, done: Any) -> None:
        self._pool, self._done = pool, done

    @property
    def done(self) -> int:
        return int(self._done.value)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._pool.submit(work, *arguments, _advance)


class _Worker(SpawnProcess):
    """A process that does not import the program that it is started from.

    Nothing that it is sent is defined there. A program may load libraries that take seconds, which each worker would load as
    well, and one without `if __name__ == "__main__"` would be run from its beginning by each.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # without a file and a name that a worker could find it by
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = program


class _Context(SpawnContext):
    Process = _Worker


_done: Any = None
"""In a worker: the count of raw bytes done, shared with the parent."""

_broken_off: Any = None
"""In a worker: whether the parent wants no more of it."""


def _start(parent: int, done: Any, broken_off: Any) -> None:
    global _done, _broken_off
    die_with_parent(parent, signal.SIGKILL)
    return_large_buffers()
    for signum in SIGNALS:  # what asks the whole group to stop is acted on by the parent, which breaks this worker off
        signal.signal(signum, signal.SIG_IGN)
    _done, _broken_off = done, broken_off


def _advance(size: int) -> None:
    if _broken_off.value:
        raise StopRequested
    with _done.get_lock():
        _done.value += size


@cache
def _encoder(url: str, tokenizer_key: str, engine: str) -> tuple[TokenizerInfo, Encode]:
    tokenizer = load_tokenizer(Store(url), tokenizer_key)
    return tokenizer, ENGINES[engine](tokenizer)


def load_encoder(url: str, tokenizer_key: str, engine: str) -> None:
    """Load what a worker needs for its first shard; it is kept for all."""
    with suppress(Exception):  # that the engine cannot take the tokenizer is found out, and told, elsewhere
        _encoder(url, tokenizer_key, engine)


def _build(recipe: Recipe, shard: ShardWork, advance: Advance) -> ShardRecord:
    store = Store(recipe.url)
    tokenizer, encode = _encoder(recipe.url, recipe.tokenizer_key, recipe.engine)
    about = shard.raw_bytes // BYTES_PER_TOKEN * token_dtype(tokenizer.max_id).itemsize
    with store.staging(about, f"{recipe.key}/{record_file(shard.number)}") as folder:
        record = build_shard(
            folder, shard.number, shard.fingerprint, shard.pieces, recipe.corpus, tokenizer, encode,
            recipe.validation_fraction, advance,
        )  # fmt: skip
        for file in record.files:
            store.put(folder / file.name, f"{recipe.key}/{file.name}")
    write_record(store, recipe.key, record)
    return record
