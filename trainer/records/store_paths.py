"""Keys of a store behind the names and paths that people give."""

import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainer.store.plain_names import is_plain_key
from trainer.store.storage import Store

RUNS = "runs/"
FOLDERS = ("runs", "encoded", "shards", "tokenizers", "decisions")
"""Folders of what is made from something, or has something made from it."""


def ways_to(store: Store, text: str) -> Iterator[str]:
    """A key or a path as it stands, without detours, and, in a local store, as the key that it leads to."""
    yield text
    yield posixpath.normpath(text)
    if store.local is not None:
        root = store.local.resolve()
        for start in (store.local, Path()):  # a name is looked for in the store first, then here
            with suppress(OSError, RuntimeError, ValueError):  # a link to itself, no path at all, or one out of the store
                yield (start / text).resolve().relative_to(root).as_posix()


def run_at(store: Store, place: str) -> str | None:
    """The key of the run that a key, or the absolute path of a folder, leads into."""
    key = made_at(store, place)
    return key if key is not None and key.startswith(RUNS) else None


def made_at(store: Store, place: str) -> str | None:
    """The same of a run or an artifact."""
    begins = (re.match(rf"(?:{'|'.join(FOLDERS)})/[\w.-]+", way) for way in ways_to(store, place))
    found = [match[0] for match in begins if match and is_plain_key(match[0])]
    return found[-1] if found else None
