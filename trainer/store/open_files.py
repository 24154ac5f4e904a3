"""The files that a process has open to read parts of them: a bounded set, whatever number it reads from.

Bytes are read, not mapped: a kernel also bounds how many files a process maps, a file that was cut short would end it by a
signal, and of a mapped file what is compared and what is used later need not be the same bytes.
"""

import os
import resource
from collections import OrderedDict
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from threading import Lock
from weakref import finalize

SHARE = 4
"""A process keeps one of so many file descriptors that it may have for this; the rest is for libraries, pipes and sockets."""

FEWEST, MOST = 8, 1024


class OpenFile:
    """A file's descriptor, closed when nobody reads it any more; `sums` keeps what belongs to it as long as it is open.

    `identity` changes when another file, or other content, takes its place.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finalize(self, os.close, self._descriptor)
        state = os.fstat(self._descriptor)
        self.identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
        self.sums: bytes | None = None

    def read(self, start: int, end: int) -> bytes:
        """The bytes from one offset to another, or as many of them as there are."""
        return os.pread(self._descriptor, end - start, start)


class OpenFiles:
    """The files that were read last; of more than `limit`, those that were read longest ago are closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[Hashable, OpenFile] = OrderedDict()
        self._turn = Lock()

    def get(self, reader: Hashable, path: Path) -> OpenFile:
        """The file that a reader reads. Raises `OSError` if it cannot be opened."""
        with self._turn:
            found = self._files.get(reader)
            if found is None:
                while len(self._files) >= self._limit:
                    self._files.popitem(last=False)
                found = self._files[reader] = OpenFile(path)
            else:
                self._files.move_to_end(reader)
            return found

    def close(self, reader: Hashable) -> None:
        """Let go of a reader's file; whoever is reading it goes on."""
        with self._turn:
            self._files.pop(reader, None)


@cache
def open_files() -> OpenFiles:
    """Those of this process: the limit is the process's, not that of each corpus that it reads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(MOST if soft == resource.RLIM_INFINITY else max(FEWEST, min(MOST, soft // SHARE)))
