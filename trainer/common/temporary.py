"""Temporary folders, with errors that say where they are: libraries that fill their disk name no file."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.common.errors import PipelineError, StorageError, reason_of
from trainer.common.transient import FULL, number_of

REMEDY = "free some space there, or set TMPDIR to a folder on a larger disk"


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a new folder, which is removed when the block ends.

    Raises `StorageError` if there is no writable folder for temporary files, or if the block fills their disk: it must
    not write to others, except through a store, whose errors name their own disk.
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
            number = number_of(error)
            if isinstance(error, PipelineError) or number not in FULL:
                raise
            place = Path(name).parent
            raise StorageError(
                f"cannot write temporary files to {place}: {os.strerror(number)}: it takes more than the "
                f"{shutil.disk_usage(place).free:,} bytes that are free there; {REMEDY}",
                transient=True,
            ) from error
