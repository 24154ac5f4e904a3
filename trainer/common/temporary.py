"""Temporary folders, with errors that say where they are: libraries that fill their disk name no file."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.common.errors import PipelineError, StorageError, reason_of
from trainer.common.transient import FULL, number_of

SOME_BYTES = 2**20
"""A disk with more free bytes is not full: another one is, such as that of the store."""

REMEDY = "free some space there, or set TMPDIR to a folder on a larger disk"


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a new folder, which is removed when the block ends.

    Raises `StorageError` if there is no writable folder for temporary files, or if the block fills their disk. The
    errors of many libraries name no file, so whether that disk is full is looked up.
    """
    try:
        created = tempfile.TemporaryDirectory(prefix="headrace-")
    except OSError as error:
        full = number_of(error) in FULL
        remedy = REMEDY if full else "set TMPDIR to a writable folder"
        raise StorageError(f"cannot create a temporary folder: {reason_of(error)}; {remedy}", full) from error
    with created as name:
        try:
            yield name
        except Exception as error:
            number, place = number_of(error), Path(name).parent
            if isinstance(error, PipelineError) or number not in FULL or shutil.disk_usage(place).free > SOME_BYTES:
                raise
            raise StorageError(
                f"cannot write temporary files to {place}: {os.strerror(number)}; {REMEDY}", transient=True
            ) from error
