"""Local stores that were there: where the folder of one is gone since, the store is away, and no new one is begun.

What must be there is the store's root, and what its private folders are in: of a disk that is not mounted, the root may
be there, and empty. Where the root holds something else, what private folders are in was only removed, and is made
again. It is remembered for all of this process, and handed on to those that it starts.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trainer.store.private_folders import STAGING

_seen: set[str] = set()


def see(*folders: Path) -> None:
    """Remember of folders that they are there."""
    _seen.update(folder for folder in map(os.path.normpath, folders) if folder not in _seen and os.path.isdir(folder))


def seen() -> list[str]:
    """What is remembered, for a process that is started."""
    return sorted(_seen)


def remember(folders: Iterable[str]) -> None:
    """Remember what the process that started this one has seen."""
    _seen.update(folders)


def forget(root: Path) -> None:
    """Begin again: what is not there of a store is made."""
    own = os.path.normpath(root)
    _seen.difference_update([each for each in seen() if each == own or each.startswith(f"{own}{os.sep}")])


def find_away(*folders: Path) -> Path | None:
    """The first of the folders that was there, and is not now."""
    return next((folder for folder in folders if os.path.normpath(folder) in _seen and not _is_there(folder)), None)


def _is_there(folder: Path) -> bool:
    """Whether a folder is there, or is the one for private folders alone gone from a root that holds something else."""
    if os.path.isdir(folder):
        return True
    with suppress(OSError):
        return folder.name == STAGING and bool(os.listdir(folder.parent))
    return False
