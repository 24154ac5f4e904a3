"""A file whose blocks are compared with their checksums when this process first reads from them."""

from collections.abc import Callable
from pathlib import Path

from trainer.store.block_sums import BLOCK_BYTES, count_blocks, find_unlike
from trainer.store.open_files import OpenFile, open_files


class DamagedBlock(Exception):
    """What was read of a file is not what its checksums say, or is not there."""


class CheckedFile:
    """Reads of one file of `size` bytes, which is opened when it is read from and closed while others are.

    `read_sums` gives the checksums of its blocks; they are asked for only while there are blocks that were not compared.
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
            raise DamagedBlock(f"its bytes {begin:,} to {min(begin + BLOCK_BYTES, self._size):,} do not match their checksum")


def _read(file: OpenFile, start: int, end: int) -> bytes:
    data = file.read(start, end)
    if len(data) < end - start:
        raise DamagedBlock(f"it ends at byte {start + len(data):,}")
    return data
