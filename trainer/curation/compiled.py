"""Loops over characters and words, compiled to machine code when first called, and kept for later processes.

    HEADRACE_CACHE/compiled/0123456789abcdef/     what was compiled of these sources, with this compiler, for this processor

Since a folder's name tells all that the code was made from, machines of several kinds may share one, and code never outlives
its sources. A folder that is lost or cannot be written costs seconds in every process that calls the loops, and nothing else.
"""

import hashlib
import logging
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import binding

from trainer.store.checked_files import FOLDER, machine_cache

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code, which other threads run beside."""
    folder, settings = _folder(), cast(Any, numba.config)
    if folder is None:
        return cast(Function, numba.njit(nogil=True)(function))
    configured, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)  # which is read when a function is made known
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    finally:
        settings.CACHE_DIR = configured


@cache
def _folder() -> Path | None:
    """Where compiled code is kept; None if nothing can be written there."""
    digest = hashlib.sha256(f"{numba.__version__}\n{binding.get_host_cpu_name()}\n".encode())
    digest.update(binding.get_host_cpu_features().flatten().encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = machine_cache() / "compiled" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        logger.warning(
            "compiled code cannot be kept in %s (%s), so that every process compiles it anew, which takes seconds; set %s to a "
            "folder that can be written", folder, error.strerror, FOLDER,
        )  # fmt: skip
        return None
    for path in folder.rglob("*.nb?"):  # a file that a power failure left empty
        with suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
    return folder
