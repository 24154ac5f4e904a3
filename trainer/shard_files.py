"""The token files of one corpus, fetched as training comes to them, and let go behind it."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import RLock

import numpy as np

from trainer.manifest import FileRecord, fetch_made
from trainer.storage import Store
from trainer.windows import Tokens

AT_A_TIME = 8
"""Files that are fetched at the same time."""


class ShardFiles:
    """The tokens of each shard, mapped from a local file: the store's own, or a copy in the machine's cache.

    `lengths` are the shards' tokens, known without fetching any. A file is compared with its digest when it is opened, unless
    that was done before and it has not changed since; raises `ArtifactError` for a damaged one, and what `Store.fetch` raises.
    """

    def __init__(self, store: Store, key: str, files: Sequence[FileRecord], dtype: np.dtype[np.generic]) -> None:
        self._store, self._key, self._files, self._dtype = store, key, list(files), dtype
        self.lengths = [file.size // dtype.itemsize for file in self._files]
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="shards")
        self._open: dict[int, Future[Tokens]] = {}
        self._turn = RLock()
        self._ahead: Sequence[int] = ()
        self._later: Iterator[int] = iter(())
        self._coming: list[Future[Tokens]] = []

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> Tokens:
        return self._start(number).result()

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

    def _start(self, number: int) -> Future[Tokens]:
        with self._turn:
            future = self._open.get(number)
            if future is None or (future.done() and future.exception() is not None):
                future = self._open[number] = self._pool.submit(self._map, self._files[number])
            return future

    def _map(self, file: FileRecord) -> Tokens:
        if file.size == 0:
            return np.empty(0, self._dtype)
        path = fetch_made(self._store, self._key, file.name, file.sha256)
        return np.memmap(path, dtype=self._dtype, mode="r")

    def _release(self, number: int) -> None:
        with self._turn:
            future = self._open.pop(number)
        future.cancel()
        future.add_done_callback(partial(self._forget, number))

    def _forget(self, number: int, future: Future[Tokens]) -> None:
        with self._turn:
            if number not in self._open:  # else it is wanted again, and fetched anew
                self._store.release(f"{self._key}/{self._files[number].name}")
