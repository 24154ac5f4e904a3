"""Files of arrays in the store, of what can be found out again: NumPy's .npz, with a checksum of the rest at its end.

The checksum stands where zip files have their comment, so that NumPy reads them as any other. It is of the file's key too: a
file in another one's place is not taken for that.
"""

import hashlib
import io
import logging
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import StorageError
from trainer.store.storage import Store

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]

CHECKSUM_BYTES = 16

DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile)
"""What NumPy and zipfile raise of a file that is not as it was written."""


def write_arrays(store: Store, key: str, arrays: Arrays) -> None:
    """Write a file; the same arrays give the same bytes."""
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    with zipfile.ZipFile(packed, "a") as archive:
        archive.comment = bytes(CHECKSUM_BYTES)
    raw = packed.getbuffer()  # of which no copy is made: a unit's arrays may be as large as its text
    raw[-CHECKSUM_BYTES:] = _checksum(key, raw[:-CHECKSUM_BYTES])
    store.write_bytes(key, raw)


def is_intact(store: Store, key: str) -> bool:
    """Whether a file is there, and as it was written; a damaged one counts as none."""
    return _intact(store, key) is not None


def read_intact(store: Store, key: str) -> Arrays | None:
    """All arrays of a file; None if it is gone, or is damaged."""
    if (raw := _intact(store, key)) is None:
        return None
    with np.load(io.BytesIO(raw)) as arrays:
        return dict(arrays)


def _intact(store: Store, key: str) -> bytes | None:
    try:
        raw = store.read_bytes(key)
    except FileNotFoundError:
        return None
    if raw[-CHECKSUM_BYTES:] == _checksum(key, memoryview(raw)[:-CHECKSUM_BYTES]):
        return raw
    log.warning("%s does not match its checksum: it is made anew", store.path(key))
    store.delete(key)  # a copy that was fetched of it counts no more either
    return None


def _checksum(key: str, raw: memoryview) -> bytes:
    place = hashlib.sha256(key.encode()).digest()
    return hashlib.blake2b(raw, digest_size=CHECKSUM_BYTES, key=place).digest()


def read_arrays(store: Store, key: str, *names: str) -> list[NDArray[Any]]:
    """Some arrays of a file that was there a moment ago. Raises `StorageError` if it is not, or is damaged."""
    with _opened(store, key) as arrays:
        return [arrays[name] for name in names]


def read_all(store: Store, key: str) -> Arrays:
    """The same of all arrays, by name."""
    with _opened(store, key) as arrays:
        return dict(arrays)


@contextmanager
def _opened(store: Store, key: str) -> Iterator[Any]:
    try:
        with np.load(_source(store, key)) as arrays:
            yield arrays
    except (FileNotFoundError, *DAMAGED) as error:
        raise StorageError(
            f"{store.path(key)} is gone or damaged ({error}); start the command again, which makes it anew"
        ) from error


def _source(store: Store, key: str) -> Path | io.BytesIO:
    """Of a folder the file, of which only what is asked for is read; of a bucket all its bytes, of which no copy is kept."""
    return store.fetch(key) if store.local is not None else io.BytesIO(store.read_bytes(key))
