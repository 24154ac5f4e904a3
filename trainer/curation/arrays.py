"""Files of arrays in the store, of what can be found out again. Each array has a checksum, which is the zip format's."""

import io
import logging
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import StorageError
from trainer.store.storage import Store

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]

DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile)
"""What NumPy and zipfile raise of a file that is not as it was written."""


def write_arrays(store: Store, key: str, arrays: Arrays) -> None:
    """Write a file; the same arrays give the same bytes."""
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    store.write_bytes(key, packed.getvalue())


def is_intact(store: Store, key: str) -> bool:
    """Whether a file is there, and as it was written; a damaged one counts as none."""
    try:
        with np.load(store.fetch(key)) as arrays:
            if (damaged := arrays.zip.testzip()) is None:
                return True
        problem = f"its array {damaged}"
    except FileNotFoundError:
        return False
    except DAMAGED as error:
        problem = str(error)
    log.warning("%s is damaged (%s): it is made anew", store.path(key), problem)
    return False


def read_arrays(store: Store, key: str, *names: str) -> list[NDArray[Any]]:
    """Some arrays of a file that was there a moment ago. Raises `StorageError` if it is not, or is damaged."""
    try:
        with np.load(store.fetch(key)) as arrays:
            return [arrays[name] for name in names]
    except (FileNotFoundError, *DAMAGED) as error:
        raise StorageError(
            f"{store.path(key)} is gone or damaged ({error}); start the command again, which makes it anew"
        ) from error


def names_of(store: Store, key: str) -> list[str]:
    """The names of the arrays of a file that is intact."""
    with np.load(store.fetch(key)) as arrays:
        return list(arrays.files)
