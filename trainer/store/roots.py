"""Detection of local stores that disappear, such as an unmounted disk, so that no new store is created in their place.

A store is present if its root and its staging folder exist: the mount point of an unmounted disk may exist but is
empty. If the root contains other files, only the staging folder was removed, and it is created again. Folders that were
seen are remembered for this process and passed to the processes that it starts.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trainer.store.private_folders import STAGING

_seen: set[str] = set()


def see(*folders: Path) -> None:
    """Remember the folders that exist."""
    _seen.update(folder for folder in map(os.path.normpath, folders) if folder not in _seen and os.path.isdir(folder))


def seen() -> list[str]:
    """The remembered folders, to pass to a new process."""
    return sorted(_seen)


def remember(folders: Iterable[str]) -> None:
    """Remember the folders that the parent process has seen."""
    _seen.update(folders)


def forget(root: Path) -> None:
    """Forget the folders of a store, so that missing ones are created."""
    own = os.path.normpath(root)
    _seen.difference_update([each for each in seen() if each == own or each.startswith(f"{own}{os.sep}")])


def find_away(*folders: Path) -> Path | None:
    """Return the first of the folders that existed before and is missing now, or None."""
    return next((folder for folder in folders if os.path.normpath(folder) in _seen and not _is_there(folder)), None)


def _is_there(folder: Path) -> bool:
    """Whether a folder exists, or is a removed staging folder of a root that contains other files."""
    if os.path.isdir(folder):
        return True
    with suppress(OSError):
        return folder.name == STAGING and bool(os.listdir(folder.parent))
    return False
