"""Verification of files: as a whole, once per machine, or block by block when they are first read.

    shard-00000.sums       for each 32 KiB of shard-00000.bin, the first 8 bytes of their SHA-256

Verifying a block takes 20 µs, once per process; the checksums have 1/4096 of the file's size.

    HEADRACE_CACHE/verified/     one small record per verified path: a digest of the path, its digest and its state

A file counts as unchanged while its size, inode and times are the same. If a record is damaged, lost or cannot be
written, the file is verified again.
"""

import fcntl
import hashlib
import os
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import fsspec

from trainer.common.errors import ConfigError, WrongContent
from trainer.common.stopping import check_stop
from trainer.store.private_folders import OpenFile, make_folders, open_files

BLOCK_BYTES = 32 * 2**10
SUM_BYTES = 8


def count_blocks(size: int) -> int:
    """Number of blocks of a file of `size` bytes; the last one may be shorter."""
    return -(-size // BLOCK_BYTES)


def sum_of(block: bytes | memoryview) -> bytes:
    """Return a block's checksum."""
    return hashlib.sha256(block).digest()[:SUM_BYTES]


def write_sums(source: Path, target: Path) -> None:
    """Write the checksums of a file's blocks to another file."""
    with open(source, "rb") as file, open(target, "wb") as sums:
        while block := file.read(BLOCK_BYTES):
            check_stop()
            sums.write(sum_of(block))


def find_unlike(data: bytes, first: int, sums: bytes, known: Sequence[int]) -> int | None:
    """Return the number of the first block in `data` that does not match its checksum, or None.

    `data` starts with block `first`. Blocks with a nonzero entry in `known` are skipped.
    """
    view = memoryview(data)
    for offset in range(0, len(data), BLOCK_BYTES):
        block = first + offset // BLOCK_BYTES
        expected = sums[block * SUM_BYTES : (block + 1) * SUM_BYTES]
        if not known[block] and sum_of(view[offset : offset + BLOCK_BYTES]) != expected:
            return block
    return None


class DamagedBlock(Exception):
    """A file's bytes do not match their checksums, or are missing."""


class CheckedFile:
    """Verified reads of one file of `size` bytes, which is opened on demand and may be closed in between.

    `read_sums` returns the checksums of its blocks; it is called only while some blocks are unverified.
    """

    def __init__(self, path: Path, size: int, read_sums: Callable[[], bytes]) -> None:
        self._path, self._size, self._read_sums = path, size, read_sums
        self._compared = bytearray(count_blocks(size))
        self._identity: tuple[int, ...] = ()

    def read(self, start: int, end: int) -> memoryview:
        """Return the verified bytes from `start` to `end`.

        Raises `DamagedBlock` if they are missing or damaged, `OSError` if they cannot be read.
        """
        file, compared = self._opened()
        first, after = start // BLOCK_BYTES, count_blocks(end)
        if 0 not in compared[first:after]:
            return memoryview(_read(file, start, end))
        data = _read(file, first * BLOCK_BYTES, min(after * BLOCK_BYTES, self._size))
        self._compare(file, data, first, compared)
        compared[first:after] = b"\1" * (after - first)
        return memoryview(data)[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        open_files().close(self)

    def _opened(self) -> tuple[OpenFile, bytearray]:
        """The open file, and for each block 1 if it was verified, else 0."""
        try:
            file = open_files().get(self, self._path)
        except FileNotFoundError as error:
            raise DamagedBlock("it is missing") from error
        if file.identity != self._identity:  # the file was replaced: nothing is verified yet
            self._identity, self._compared = file.identity, bytearray(len(self._compared))
        return file, self._compared

    def _compare(self, file: OpenFile, data: bytes, first: int, compared: bytearray) -> None:
        if file.sums is None:
            file.sums = self._read_sums()
        if (block := find_unlike(data, first, file.sums, compared)) is not None:
            begin = block * BLOCK_BYTES
            raise DamagedBlock(
                f"its bytes {begin:,} to {min(begin + BLOCK_BYTES, self._size):,} do not match their checksum"
            )


def _read(file: OpenFile, start: int, end: int) -> bytes:
    data = file.read(start, end)
    if len(data) < end - start:
        raise DamagedBlock(f"it ends at byte {start + len(data):,}")
    return data


BLOCK = 2**20


def local_version(status: os.stat_result) -> str:
    """A value that changes with a local file: a program can restore the modification time, but not the other two."""
    return f"{status.st_mtime} {status.st_ctime} {status.st_ino}"


def digest_stream(file: IO[bytes], size: int = sys.maxsize) -> str:
    """The SHA-256 of up to `size` bytes of an open file, from its current position."""
    digest = hashlib.sha256()
    while block := file.read(min(BLOCK, size)):
        check_stop()
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


FOLDER = "HEADRACE_CACHE"

RACY_SECONDS = 2.0
"""A file changed more recently than this could change again without a new time stamp, so its check is not recorded."""

UNUSED_SECONDS = 90 * 24 * 60 * 60


def machine_cache() -> Path:
    """This machine's cache folder: set by the environment, else in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get(FOLDER) or Path(home, "headrace")).expanduser()
    except RuntimeError:  # a user without a home, as in some containers
        return _own(Path(tempfile.gettempdir(), f"headrace-{os.getuid()}"))


def _own(folder: Path) -> Path:
    """The folder, created if missing; raises `ConfigError` if another user created it, as all may in such a place."""
    with suppress(OSError):  # it exists, or no folder can be created there
        folder.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise ConfigError(
                f"{folder}, the cache of a user without a home folder, is not a folder that only this user can change: "
                f"set {FOLDER} to such a folder"
            )
    return folder


def require_content(path: str | Path, sha256: str, recheck: bool = False, linked: bool = False) -> None:
    """Compare a file with its digest, unless it was verified and is unchanged since; with `recheck`, always.

    The check of a URL is recorded only if its file system provides entity tags. For a `linked` file, which gains and
    loses hard links, the change time of the inode is ignored. Raises `WrongContent`, and `OSError` if the file cannot
    be read.
    """
    record = machine_cache() / "verified" / _digest(str(path))
    if not recheck and _remembers(record, path, sha256, linked):
        return
    # Of several processes that start together, one reads the file.
    with locked(record.with_name(f"{record.name[:2]}.lock")):
        if not recheck and _remembers(record, path, sha256, linked):
            return
        begun, before = time.time(), _state(path, linked)
        found = digest_bytes(path)
        if found != sha256:
            _forget(record)
            raise WrongContent(f"does not match its checksum (sha256 {found[:12]}…, its manifest says {sha256[:12]}…)")
        if before is not None and before == _state(path, linked) and begun - _changed(path, linked) > RACY_SECONDS:
            _remember(record, _seen(path, sha256, before))


def digest_bytes(path: str | Path) -> str:
    """The SHA-256 of a file or URL."""
    with fsspec.open(path, "rb").open() if _is_remote(path) else open(path, "rb") as file:
        return digest_stream(file)


def forget_unused() -> None:
    """Remove records of files that have not been used for a long time."""
    with suppress(OSError):
        for entry in os.scandir(machine_cache() / "verified"):
            with suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > UNUSED_SECONDS:
                    os.unlink(entry.path)


def _remembers(record: Path, path: str | Path, sha256: str, linked: bool) -> bool:
    state = _state(path, linked)
    if state is None:
        return False
    with suppress(OSError):
        if record.read_bytes() == _seen(path, sha256, state):
            os.utime(record)
            return True
    return False


def _remember(record: Path, seen: bytes) -> None:
    with suppress(OSError):
        fresh = record.with_name(f"{record.name}.{uuid.uuid4().hex[:12]}")
        fresh.write_bytes(seen)
        os.replace(fresh, record)


def _forget(record: Path) -> None:
    with suppress(OSError):
        record.unlink()


def _seen(path: str | Path, sha256: str, state: str) -> bytes:
    """A record's content: it matches only this path, digest and state, so it needs no checksum."""
    return _digest(f"{path}\n{sha256}\n{state}").encode()


def _state(path: str | Path, linked: bool) -> str | None:
    """A text that changes if the file changes, or None if there is none; raises `FileNotFoundError`."""
    if _is_remote(path):
        fs, full = fsspec.url_to_fs(path)
        fs.invalidate_cache()  # the current state, not that of an earlier listing
        info = fs.info(full)
        tag = info.get("ETag") or info.get("etag")
        return f"{info['size']} {tag}" if tag else None
    state = os.stat(path)
    return f"{state.st_size} {state.st_dev} {state.st_ino} {state.st_mtime_ns} {'' if linked else state.st_ctime_ns}"


def _changed(path: str | Path, linked: bool) -> float:
    """When a local file last changed, in seconds."""
    if _is_remote(path):
        return 0.0
    state = os.stat(path)
    return state.st_mtime if linked else max(state.st_mtime, state.st_ctime)


def _is_remote(path: str | Path) -> bool:
    return isinstance(path, str) and "://" in path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def opened_lock(path: str | Path) -> Iterator[int]:
    """Open a lock file, created if missing, and yield its descriptor."""
    # For reading too: NFS refuses a shared lock otherwise.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[None]:
    """Hold a lock file against other processes and threads, if the file system allows; released if the process dies.

    Several may hold it at once if all take it `shared`.
    """
    with ExitStack() as locks:
        with suppress(OSError):
            make_folders(path.parent)
            lock = locks.enter_context(opened_lock(path))
            fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
