"""Reading the files of shards: windows over their tokens, document starts, fetching, and noting damage.

Windows are cut as in the reference loops: the last window of a shard is its last `context` tokens and overlaps the one
before. A shard shorter than one window has none.

A shard's .idx file holds its documents' starts; shards.py describes the format.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import RLock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError, StorageError
from trainer.common.transient import retry_transient
from trainer.store.artifact_files import fetch_made, locate_made, read_made
from trainer.store.checked_files import CheckedFile, DamagedBlock
from trainer.store.manifest import FileRecord
from trainer.store.storage import Store

log = logging.getLogger(__name__)


Tokens = NDArray[Any]


class Shards(Protocol):
    """The tokens of each shard of a corpus; `lengths` are known before any shard is read."""

    @property
    def lengths(self) -> Sequence[int]: ...
    def read(self, number: int, start: int, stop: int) -> Tokens: ...
    def use(self, now: Iterable[int], ahead: Sequence[int] = ()) -> None: ...


def count_windows(tokens: int, context: int, stride: int) -> int:
    """Number of windows in a shard with this many tokens."""
    return 0 if tokens < context else -(-(tokens - context) // stride) + 1


class Counts(NamedTuple):
    """Predicted tokens and read tokens of some windows."""

    targets: int
    tokens: int


class NumberedWindows:
    """Windows of `context` tokens, numbered through all shards of a corpus; `counts` has those of each shard."""

    def __init__(self, shards: Shards, counts: Sequence[int], context: int) -> None:
        self.shards, self.counts, self.context = shards, list(counts), context
        self._ends = np.cumsum(self.counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def prepare(self, numbers: NDArray[np.int64], ahead: Sequence[int]) -> None:
        """Prepare the shards of these windows and of those read next (`ahead`); release all others."""
        self.shards.use(np.unique(np.searchsorted(self._ends, numbers, side="right")).tolist(), ahead)

    def locate(self, number: int) -> tuple[int, int]:
        """The shard of a window, and the window's number in that shard."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard - 1]) if shard else 0)


class Windows(NumberedWindows):
    """The windows over the stream of documents of a corpus, one every `stride` tokens, each read as one text."""

    looks_at_batch = False
    """Whether a rank must read all windows of a batch to count its predicted tokens."""

    def __init__(self, shards: Shards, context: int, stride: int) -> None:
        super().__init__(shards, [count_windows(length, context, stride) for length in shards.lengths], context)
        self._stride = stride

    def read(self, number: int) -> NDArray[np.int64]:
        """The tokens of a window, of shape [context]."""
        shard, place = self.locate(number)
        start = min(place * self._stride, self.shards.lengths[shard] - self.context)
        return self.shards.read(shard, start, start + self.context).astype(np.int64)

    def inputs(self, number: int) -> dict[str, NDArray[np.int64]]:
        """Model inputs of a window by name; each of shape [context]."""
        return {"input_ids": self.read(number)}

    def count(self, numbers: NDArray[np.int64]) -> Counts:
        """Predicted and read tokens of these windows: all but the first token of each are predicted."""
        return Counts(len(numbers) * (self.context - 1), len(numbers) * self.context)


SUSPECT = "suspect.json"
"""A file in the set's folder; only its existence matters."""


def mark_damaged(store: Store, key: str, problem: str) -> None:
    """Mark an artifact as damaged; if the mark cannot be written, log a warning that says what to do."""
    try:
        store.write_json(f"{key}/{SUSPECT}", {"problem": problem})
    except StorageError as error:
        log.warning("%s: prepare the data with --verify, which reads all of %s", error, store.path(key))


def is_marked(store: Store, key: str) -> bool:
    """Whether damage was found in an artifact since it was last fully verified."""
    return store.exists(f"{key}/{SUSPECT}")


def clear_mark(store: Store, key: str) -> None:
    """Remove the mark after an artifact was fully read and matches its manifest."""
    store.delete(f"{key}/{SUSPECT}")


AT_A_TIME = 8
"""Files fetched at the same time."""


class ShardFiles:
    """The tokens of each shard, read from a local file: the store's own, or a copy in this machine's cache.

    `lengths` are the shards' tokens, known without fetching any; `sums` are the files with the blocks' checksums. A
    block is verified when this process first reads from it.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        files: Sequence[FileRecord],
        sums: Sequence[FileRecord],
        dtype: np.dtype[np.generic],
    ) -> None:
        self._store, self._key, self._files, self._sums, self._dtype = store, key, list(files), list(sums), dtype
        self.lengths = [file.size // dtype.itemsize for file in self._files]
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="shards")
        self._open: dict[int, Future[CheckedFile]] = {}
        self._turn = RLock()
        self._ahead: Sequence[int] = ()
        self._later: Iterator[int] = iter(())
        self._coming: list[Future[CheckedFile]] = []

    def read(self, number: int, start: int, stop: int) -> Tokens:
        """A shard's tokens from `start` to `stop`, or to its end; read-only.

        Waits if the store is unreachable. Raises `ArtifactError` for damage, which is marked for the next preparation,
        and whatever `Store.fetch` raises.
        """
        stop = min(stop, self.lengths[number])
        if start >= stop:
            return np.empty(0, self._dtype)
        begin, end = start * self._dtype.itemsize, stop * self._dtype.itemsize
        try:
            data = retry_transient(lambda: self._read(number, begin, end))
        except OSError:
            with self._store.reading(f"{self._key}/{self._files[number].name}"):
                raise
        except ArtifactError as error:
            mark_damaged(self._store, self._key, str(error))
            raise
        return np.frombuffer(data, self._dtype)

    def largest(self, count: int | None) -> int:
        """Total bytes of the `count` largest files, or of all."""
        return sum(sorted((file.size for file in self._files), reverse=True)[:count])

    def use(self, now: Iterable[int], ahead: Sequence[int] = ()) -> None:
        """Fetch the shards `now` at once and some of `ahead` in order; release those in neither.

        Unless it is empty, `ahead` includes `now`. If `ahead` is the same object as in the last call, nothing is
        released. A file that could not be fetched ahead is fetched again when it is read.
        """
        if ahead is not self._ahead or not ahead:
            self._ahead, self._later = ahead, iter(ahead)
            for number in self._open.keys() - {*now, *ahead}:
                self._release(number)
        for number in now:
            self._start(number)
        self._coming = [future for future in self._coming if not future.done()]
        while len(self._coming) < AT_A_TIME and (later := next(self._later, None)) is not None:
            if not (future := self._start(later)).done():
                self._coming.append(future)

    def _read(self, number: int, begin: int, end: int) -> memoryview:
        try:
            return self._start(number).result().read(begin, end)
        except DamagedBlock:
            self._fetch_again(number)
        try:
            return self._start(number).result().read(begin, end)
        except DamagedBlock as error:  # although the whole file matches the manifest
            path = self._store.path(f"{self._key}/{self._files[number].name}")
            raise ArtifactError(
                f"{path} reads differently each time: {error}; check this machine's disk and memory"
            ) from error

    def _start(self, number: int) -> Future[CheckedFile]:
        with self._turn:
            future = self._open.get(number)
            if future is None or (future.done() and future.exception() is not None):
                future = self._open[number] = self._pool.submit(self._fetch, number)
            return future

    def _fetch(self, number: int) -> CheckedFile:
        file, sums = self._files[number], self._sums[number]
        path = locate_made(self._store, self._key, file)
        return CheckedFile(path, file.size, partial(read_made, self._store, self._key, sums))

    def _fetch_again(self, number: int) -> None:
        """Replace a damaged copy of a remote file. Raises `ArtifactError`, with the repair, if the store's own file is
        damaged.
        """
        file = self._files[number]
        fetch_made(self._store, self._key, file.name, file.sha256, recheck=True)
        with self._turn:
            if (damaged := self._open.pop(number, None)) is not None:
                damaged.result().close()

    def _release(self, number: int) -> None:
        with self._turn:
            future = self._open.pop(number)
        future.cancel()
        future.add_done_callback(partial(self._forget, number))

    def _forget(self, number: int, future: Future[CheckedFile]) -> None:
        if not future.cancelled() and future.exception() is None:
            future.result().close()
        with self._turn:
            if number not in self._open:  # else it was requested again and is being fetched
                self._store.release(f"{self._key}/{self._files[number].name}")


def read_index(store: Store, key: str, file: FileRecord) -> NDArray[np.int64]:
    """The start of each document of a shard and the end of the last, in tokens.

    Waits if the store is unreachable. Raises `ArtifactError` for a damaged file, which is marked for the next
    preparation.
    """
    try:
        raw = retry_transient(lambda: read_made(store, key, file))
    except ArtifactError as error:
        mark_damaged(store, key, str(error))
        raise
    return np.frombuffer(raw, dtype="<u8").astype(np.int64)
