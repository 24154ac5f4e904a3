"""Files compared with their digests: as a whole, once a machine, or block by block when they are first read.

    shard-00000.sums       for each 32 KiB of shard-00000.bin, the first 8 bytes of their SHA-256

To compare a block takes 20 µs, once a process; what it says is 1/4096 of the file.

    HEADRACE_CACHE/verified/     one small file for each path: a digest of all that was known of it when it was compared

A file counts as unchanged as long as its size, inode and times are the same. A memory that is damaged, lost or cannot
be written costs another look, and nothing else.
"""

import fcntl
import hashlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import fsspec

from trainer.common.errors import WrongContent
from trainer.common.stopping import check_stop
from trainer.store.private_folders import OpenFile, make_folders, open_files

BLOCK_BYTES = 32 * 2**10
SUM_BYTES = 8


def count_blocks(size: int) -> int:
    """The blocks of a file of so many bytes; the last one may be shorter."""
    return -(-size // BLOCK_BYTES)


def sum_of(block: bytes | memoryview) -> bytes:
    """A block's checksum."""
    return hashlib.sha256(block).digest()[:SUM_BYTES]


def write_sums(source: Path, target: Path) -> None:
    """Write the checksums of a file's blocks into another file."""
    with open(source, "rb") as file, open(target, "wb") as sums:
        while block := file.read(BLOCK_BYTES):
            check_stop()
            sums.write(sum_of(block))


def find_unlike(data: bytes, first: int, sums: bytes, known: Sequence[int]) -> int | None:
    """The first of the blocks in `data` that is not what its checksum says, if any; block `first` begins it.

    Those that are `known` are not looked at: a number for each block of the file, 0 for the others.
    """
    view = memoryview(data)
    for offset in range(0, len(data), BLOCK_BYTES):
        block = first + offset // BLOCK_BYTES
        said = sums[block * SUM_BYTES : (block + 1) * SUM_BYTES]
        if not known[block] and sum_of(view[offset : offset + BLOCK_BYTES]) != said:
            return block
    return None


class DamagedBlock(Exception):
    """What was read of a file is not what its checksums say, or is not there."""


class CheckedFile:
    """Reads of one file of `size` bytes, which is opened when it is read from and closed while others are.

    `read_sums` gives the checksums of its blocks; they are asked for only while there are blocks that were not
    compared.
    """

    def __init__(self, path: Path, size: int, read_sums: Callable[[], bytes]) -> None:
        self._path, self._size, self._read_sums = path, size, read_sums
        self._compared = bytearray(count_blocks(size))
        self._identity: tuple[int, ...] = ()

    def read(self, start: int, end: int) -> memoryview:
        """The bytes from one offset to another, as they were compared.

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
        """Let go of the file, which is opened again if it is read again."""
        open_files().close(self)

    def _opened(self) -> tuple[OpenFile, bytearray]:
        """The open file, and which of its blocks were compared: 1 for those, else 0."""
        try:
            file = open_files().get(self, self._path)
        except FileNotFoundError as error:
            raise DamagedBlock("it is missing") from error
        if file.identity != self._identity:  # another file, of which nothing was compared yet
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


def digest_stream(file: IO[bytes], size: int = sys.maxsize) -> str:
    """The SHA-256 of so many bytes of an open file, from where it stands, or of as many as there are."""
    digest = hashlib.sha256()
    while block := file.read(min(BLOCK, size)):
        check_stop()
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


FOLDER = "HEADRACE_CACHE"

RACY_SECONDS = 2.0
"""A file changed this recently could change again within its clock's tick, so what was seen of it is not remembered."""

UNUSED_SECONDS = 90 * 24 * 60 * 60


def machine_cache() -> Path:
    """The folder for what this machine keeps of its own: as the environment says, else in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get(FOLDER) or Path(home, "headrace")).expanduser()
    except RuntimeError:  # a user of a container who has no home
        return Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")


def require_content(path: str | Path, sha256: str, anew: bool = False, linked: bool = False) -> None:
    """Compare a file's bytes with their digest, unless that was done and the file has not changed since; `anew`: even
    then.

    A URL is remembered if its file system gives entity tags. Of a file that is `linked`, which gets and loses second
    names, the time of the last change of its names and rights does not count. Raises `WrongContent`, and `OSError` if
    the file cannot be read.
    """
    record = machine_cache() / "verified" / _digest(str(path))
    if not anew and _remembers(record, path, sha256, linked):
        return
    with _alone(record):  # of several processes that begin at once, one reads the file
        if not anew and _remembers(record, path, sha256, linked):
            return
        begun, before = time.time(), _state(path, linked)
        found = digest_bytes(path)
        if found != sha256:
            _forget(record)
            raise WrongContent(f"does not match its checksum (sha256 {found[:12]}…, its manifest says {sha256[:12]}…)")
        if before is not None and before == _state(path, linked) and begun - _changed(path, linked) > RACY_SECONDS:
            _remember(record, _seen(path, sha256, before))


def digest_bytes(path: str | Path) -> str:
    """The SHA-256 of a file, or of what a URL names."""
    with fsspec.open(path, "rb").open() if _is_remote(path) else open(path, "rb") as file:
        return digest_stream(file)


def forget_unused() -> None:
    """Remove what was remembered of files that nobody has used for a long time."""
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
    """What a record holds: it is right for this path, digest and state alone, so it needs no checksum of its own."""
    return _digest(f"{path}\n{sha256}\n{state}").encode()


def _state(path: str | Path, linked: bool) -> str | None:
    """What changes with a file; None if that cannot be told. Raises `FileNotFoundError`."""
    if _is_remote(path):
        fs, full = fsspec.url_to_fs(path)
        fs.invalidate_cache()  # as it is now, not as it was when its folder was listed
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
    """The descriptor of a file that is there to be locked, made if need be."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _alone(record: Path) -> Iterator[None]:
    """Keep other processes and threads out of the same block, where that can be; one that dies lets go."""
    with ExitStack() as held:
        with suppress(OSError):
            make_folders(record.parent)
            lock = held.enter_context(opened_lock(record.with_name(f"{record.name[:2]}.lock")))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
