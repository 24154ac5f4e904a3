"""The token files of one corpus, fetched as training comes to them, and let go behind it."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import RLock

import numpy as np

from trainer.common.errors import ArtifactError
from trainer.common.outages import patiently
from trainer.corpus.suspects import suspect
from trainer.corpus.windows import Tokens
from trainer.store.checked_files import CheckedFile, DamagedBlock
from trainer.store.manifest import FileRecord, fetch_made, locate_made, read_made
from trainer.store.storage import Store

AT_A_TIME = 8
"""Files that are fetched at the same time."""


class ShardFiles:
    """The tokens of each shard, read from a local file: the store's own, or a copy in the machine's cache.

    `lengths` are the shards' tokens, known without fetching any; `sums` are the files of their blocks' checksums. A block is
    compared when this process first reads from it.
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
        """A shard's tokens from one offset to another, or to its end; not to be written to.

        A store that is away is waited for. Raises `ArtifactError` for damaged ones, of which the next preparation of the set is
        told, and what `Store.fetch` raises.
        """
        stop = min(stop, self.lengths[number])
        if start >= stop:
            return np.empty(0, self._dtype)
        begin, end = start * self._dtype.itemsize, stop * self._dtype.itemsize
        try:
            data = patiently(lambda: self._read(number, begin, end))
        except OSError:
            with self._store.reading(f"{self._key}/{self._files[number].name}"):
                raise
        except ArtifactError as error:
            suspect(self._store, self._key, str(error))
            raise
        return np.frombuffer(data, self._dtype)

    def largest(self, count: int | None) -> int:
        """Bytes of the largest files, so many of them, or of all."""
        return sum(sorted((file.size for file in self._files), reverse=True)[:count])

    def use(self, now: Iterable[int], ahead: Sequence[int] = ()) -> None:
        """Fetch the first, all at once, and some of the others in their order; let go of what is in neither.

        `ahead` holds the first too, unless it is empty; as long as it is the same object, only what is new is looked at. A file
        fetched ahead that fails is fetched again when it is read.
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
            self._fetch_anew(number)
        try:
            return self._start(number).result().read(begin, end)
        except DamagedBlock as error:  # though the file is, as a whole, what the manifest says
            path = self._store.path(f"{self._key}/{self._files[number].name}")
            raise ArtifactError(f"{path} gives other bytes each time: {error}; check this machine's disk and memory") from error

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

    def _fetch_anew(self, number: int) -> None:
        """Replace a damaged copy of a remote file. Raises `ArtifactError` for a damaged file of the store, what repairs it."""
        file = self._files[number]
        fetch_made(self._store, self._key, file.name, file.sha256, check=True)
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
            if number not in self._open:  # else it is wanted again, and fetched anew
                self._store.release(f"{self._key}/{self._files[number].name}")
