"""Listings of remote file systems in which no folder is missing only because it could not be listed."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

SKIPPING = (AbstractFileSystem.find, AsyncFileSystem._find)
"""fsspec's own functions, which silently skip a folder that cannot be listed: they raise errors at most for the first.
"""


def files_at(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    """The entries of all files below a remote folder. Raises the file system's error for a folder that cannot be
    listed; one that does not exist, or is removed meanwhile, holds no files.
    """
    if (getattr(type(fs), "_find", None) or getattr(type(fs), "find", None)) not in SKIPPING:
        yield from fs.find(folder, detail=True).values()
        return
    with suppress(FileNotFoundError):
        for entry in fs.ls(folder, detail=True):
            if entry["type"] != "directory":
                yield entry
            elif entry["name"].rstrip("/") != folder.rstrip("/"):  # some file systems list a folder in itself
                yield from files_at(fs, entry["name"])
