"""Building shards in worker processes, and finding finished ones to reuse."""

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, zip_longest
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType, TracebackType
from typing import Any, Self

from trainer.common.errors import RecordError, StorageError, reason_of
from trainer.common.process import QuickEnd, die_with_parent, return_large_buffers
from trainer.common.stopping import SIGNALS, StopRequested, blocked_stops
from trainer.common.transient import is_transient
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import TransformConfig
from trainer.data.decisions import PieceMask, read_curated
from trainer.data.encoders import ENGINES, Encode
from trainer.data.pieces import Piece
from trainer.data.readers import Document, OnBad
from trainer.data.shards import (
    BYTES_PER_TOKEN,
    KIND,
    ShardRecord,
    build_shard,
    read_record,
    record_file,
    token_dtype,
    write_record,
)
from trainer.engines.executors import Advance, filling
from trainer.models.tokenizer import TokenizerInfo, load_tokenizer
from trainer.store import roots
from trainer.store.artifact_files import Depth, find_damage
from trainer.store.manifest import fingerprinted, make_manifest
from trainer.store.storage import Store


@dataclass(frozen=True)
class Recipe:
    """Settings common to all shards of a set."""

    url: str
    key: str
    corpus: CorpusConfig
    tokenizer_key: str
    engine: str
    validation_fraction: float
    transform: TransformConfig | None = None


@dataclass(frozen=True)
class ShardWork:
    """One shard to build: its number, the fingerprint of its source, its pieces, and curation's decisions on each."""

    number: int
    fingerprint: str
    pieces: tuple[Piece, ...]
    decided: tuple[PieceMask | None, ...] = ()

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)


_done: Any = None
"""In a worker: the raw bytes processed, shared with the parent."""

_broken_off: Any = None
"""In a worker: whether the parent has asked it to stop."""


def begin(parent: int, done: Any, broken_off: Any, seen: Sequence[str]) -> None:
    global _done, _broken_off
    die_with_parent(parent, signal.SIGKILL)
    return_large_buffers()
    for signum in SIGNALS:  # the parent handles signals to the whole group, and stops this worker itself
        signal.signal(signum, signal.SIG_IGN)
    roots.remember(seen)
    _done, _broken_off = done, broken_off


def report_to_parent(size: int) -> None:
    """Add to the raw bytes processed. Raises `StopRequested` if the parent has stopped this worker."""
    if _broken_off.value:
        raise StopRequested
    with _done.get_lock():
        _done.value += size


def load_encoder(url: str, tokenizer_key: str, engine: str) -> None:
    """Load the encoder before a worker's first shard; the worker keeps it."""
    with suppress(Exception):  # an engine that cannot load the tokenizer is reported elsewhere
        _encoder(url, tokenizer_key, engine)


@cache
def _encoder(url: str, tokenizer_key: str, engine: str) -> tuple[TokenizerInfo, Encode]:
    tokenizer = load_tokenizer(Store(url), tokenizer_key)
    return tokenizer, ENGINES[engine](tokenizer)


def build(recipe: Recipe, shard: ShardWork, advance: Advance) -> ShardRecord:
    """Build and publish a shard; `advance` is called with the raw bytes processed."""
    store = Store(recipe.url)
    tokenizer, encode = _encoder(recipe.url, recipe.tokenizer_key, recipe.engine)
    about = shard.raw_bytes // BYTES_PER_TOKEN * token_dtype(tokenizer.max_id).itemsize
    with (
        filling(advance, shard.raw_bytes) as count,
        store.staging(about, f"{recipe.key}/{record_file(shard.number)}") as folder,
    ):
        documents = partial(shard_documents, recipe, shard, count)
        record = build_shard(
            folder, shard.number, shard.fingerprint, shard.raw_bytes, documents, recipe.corpus.max_bad_records,
            tokenizer,
            encode, recipe.validation_fraction,
        )  # fmt: skip
        for file in record.files:
            store.put(folder / file.name, f"{recipe.key}/{file.name}")
    write_record(store, recipe.key, record)
    return record


def shard_documents(recipe: Recipe, shard: ShardWork, advance: Advance, on_bad: OnBad) -> Iterator[Document]:
    """The documents of a shard; `advance` is called with the bytes of each.

    A part of a long document ends it if the next part is not from the same piece or the file's next piece, or if a part
    between them was skipped as bad.
    """
    left_out = 0

    def leave_out(error: RecordError) -> None:
        nonlocal left_out
        left_out += 1
        on_bad(error)

    def read() -> Iterator[tuple[Piece, Document, int] | None]:
        for piece, decided in zip_longest(shard.pieces, shard.decided):
            for document in read_curated(piece, recipe.corpus, leave_out, recipe.transform, decided):
                yield piece, document, left_out
        yield None

    for found, following in pairwise(read()):
        assert found is not None
        piece, document, before = found
        goes_on = (
            following is not None and following[2] == before and (following[0] == piece or piece.precedes(following[0]))
        )
        advance(len(document.text) + 1)
        yield document if goes_on else document._replace(ends=True)


def finished_shards(
    store: Store, key: str, corpus: str, work: Sequence[ShardWork], depth: Depth
) -> dict[int, ShardRecord]:
    """Shards of `work` that exist with intact files, by number; those of older sets are copied into this one."""
    found = find_shards(store, key, corpus, work, depth)
    return {
        number: record if folder == key else _take_over(store, folder, key, record, number)
        for number, (folder, record) in found.items()
    }


def find_shards(
    store: Store, key: str, corpus: str, work: Sequence[ShardWork], depth: Depth
) -> dict[int, tuple[str, ShardRecord]]:
    """Shards of `work` that exist with intact files, by number, each with the folder of its set."""
    found: dict[int, tuple[str, ShardRecord]] = {}
    sizes = cache(store.sizes)  # one listing of a set for all of its shards
    for shard in work:
        record = read_record(store, f"{key}/{record_file(shard.number)}")
        if record and record.fingerprint == shard.fingerprint and _intact(store, key, record, depth, sizes):
            found[shard.number] = key, record
    missing = {shard.fingerprint: shard.number for shard in work if shard.number not in found}
    for folder in _older_sets(store, key, corpus):
        if not missing:
            break
        for file in store.names(folder):
            record = read_record(store, f"{folder}/{file}") if re.fullmatch(r"shard-\d+\.json", file) else None
            if record and record.fingerprint in missing and _intact(store, folder, record, depth, sizes):
                found[missing.pop(record.fingerprint)] = folder, record
    return found


def _older_sets(store: Store, key: str, corpus: str) -> list[str]:
    folders = [f"shards/{name}" for name in fingerprinted(store.names("shards"), corpus)]
    return [folder for folder in folders if folder != key]


def _intact(
    store: Store, folder: str, record: ShardRecord, depth: Depth, sizes: Callable[[str], Mapping[str, int]]
) -> bool:
    manifest = make_manifest(KIND, record.fingerprint, record.files, {})
    return not find_damage(store, folder, manifest, depth, sizes)


def _take_over(store: Store, folder: str, key: str, record: ShardRecord, number: int) -> ShardRecord:
    """Copy a shard's files into this set, under its number in this set."""
    files = []
    for file in record.files:
        side, _, ending = file.name.replace(".", "-").split("-")
        name = f"{side}-{number:05d}.{ending}"
        store.copy(f"{folder}/{file.name}", f"{key}/{name}")
        files.append(file.model_copy(update={"name": name}))
    moved = record.model_copy(update={"number": number, "files": files})
    write_record(store, key, moved)
    return moved


EARLY_BYTES = 16 * 2**20
"""One worker is started early per this many bytes of raw text."""


class Workers:
    """An `Executor` of up to `processes` processes, started as work arrives. They end with the `with` block."""

    most = None
    _done: Any
    _broken_off: Any

    def __init__(self, processes: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._processes = processes

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._started().submit(work, *arguments, report_to_parent)

    @property
    def done(self) -> int:
        return int(self._done.value) if self._pool else 0

    def start_early(self, raw_bytes: int, url: str, tokenizer_key: str, engine: str) -> None:
        """Let workers load the encoder while the work is being planned: loading takes as long as a small shard."""
        for _ in range(min(self._processes, raw_bytes // EARLY_BYTES)):
            self._started().submit(load_encoder, url, tokenizer_key, engine)

    def _started(self) -> ProcessPoolExecutor:
        """The pool; it starts a process for a submission if none is idle."""
        if self._pool is None:
            # The start of the resource tracker unblocks SIGINT and SIGTERM, which it ignores: so it comes before that
            # of a worker. A SIGHUP to the group would end the tracker if it were not blocked when it starts.
            with blocked_stops():
                resource_tracker.ensure_running()
            with _explaining_shared_memory():
                context = _Context()
                self._done, self._broken_off = context.Value("q", 0), context.Value("b", False)
                given = os.getpid(), self._done, self._broken_off, roots.seen()
                self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=begin, initargs=given)
        return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop unfinished work."""
        if self._pool is not None:
            self._broken_off.value = True
            self._pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _explaining_shared_memory() -> Iterator[None]:
    """Convert errors while the locks and counters that processes share are created, which name no place."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise StorageError(
            f"cannot start worker processes: {reason_of(error)}; give this user write permission and free space in "
            "/dev/shm, the shared memory of this machine or container (of a container, for example by --shm-size)",
            is_transient(error),
        ) from error


class _Worker(SpawnProcess):
    """A process that does not import the main program of its parent.

    Workers are sent nothing that is defined there. Importing it could load libraries for seconds in each worker, and
    would run a program without `if __name__ == "__main__"` from its beginning.
    """

    def run(self) -> None:
        end = QuickEnd()
        super().run()
        end(0)

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # has no file or name from which a worker could import it
        try:
            with blocked_stops():  # a worker ignores these signals, see `begin`
                return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = program


class _Context(SpawnContext):
    Process = _Worker
