"""Worker processes, which end with their parent."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType, TracebackType
from typing import Any, Self

from trainer.common.process import QuickEnd
from trainer.common.stopping import blocked_stops
from trainer.corpus.shard_building import begin, load_encoder, tell_parent
from trainer.store import roots

EARLY_BYTES = 16 * 2**20
"""Raw text, to be built, for which a worker is started before it is known what there is to build."""


class Workers:
    """A `Carrier`: at most so many processes, each started when there is work for it. They end with the block."""

    most = None
    _done: Any
    _broken_off: Any

    def __init__(self, processes: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._processes = processes

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._started().submit(work, *arguments, tell_parent)

    @property
    def done(self) -> int:
        return int(self._done.value) if self._pool else 0

    def start_early(self, raw_bytes: int, url: str, tokenizer_key: str, engine: str) -> None:
        """Have them load what so much raw text needs, which takes as long as building a small shard."""
        for _ in range(min(self._processes, raw_bytes // EARLY_BYTES)):
            self._started().submit(load_encoder, url, tokenizer_key, engine)

    def _started(self) -> ProcessPoolExecutor:
        """The pool, which starts a process for what is submitted if none is idle."""
        if self._pool is None:
            context = _Context()
            self._done, self._broken_off = context.Value("q", 0), context.Value("b", False)
            given = os.getpid(), self._done, self._broken_off, roots.seen()
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=begin, initargs=given)
        return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Break off what is not finished."""
        if self._pool is not None:
            self._broken_off.value = True
            self._pool.shutdown(wait=True, cancel_futures=True)


class _Worker(SpawnProcess):
    """A process that does not import the program that it is started from.

    Nothing that it is sent is defined there. A program may load libraries that take seconds, which each worker would load as
    well, and one without `if __name__ == "__main__"` would be run from its beginning by each.
    """

    def run(self) -> None:
        end = QuickEnd()
        super().run()
        end(0)

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        resource_tracker.ensure_running()  # which is started with the first, and lets the signals through again
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # without a file and a name that a worker could find it by
        try:
            with blocked_stops():  # a worker never heeds them (`begin`)
                return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = program


class _Context(SpawnContext):
    Process = _Worker
