"""Keys of a store behind the names and paths that people give."""

import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainer.common.errors import ConfigError, RunError
from trainer.common.formats import NAMED, tell_nearest
from trainer.store.names import is_plain_key
from trainer.store.storage import Store

RUN_PREFIX = "runs/"
FOLDERS = ("runs", "encoded", "references", "shards", "tokenizers", "decisions")
"""Folders of what is made from something, or has something made from it."""


def ways_to(store: Store, text: str) -> Iterator[str]:
    """A key or a path as it stands, without detours, and, in a local store, as the key that it leads to."""
    yield text
    yield posixpath.normpath(text)
    if store.local is not None:
        root = store.local.resolve()
        for start in (store.local, Path()):  # a name is looked for in the store first, then here
            # A link to itself, no path at all, or one out of the store.
            with suppress(OSError, RuntimeError, ValueError):
                yield (start / text).resolve().relative_to(root).as_posix()


def run_at(store: Store, place: str) -> str | None:
    """The key of the run that a key, or the absolute path of a folder, leads into."""
    key = made_at(store, place)
    return key if key is not None and key.startswith(RUN_PREFIX) else None


def made_at(store: Store, place: str) -> str | None:
    """The same of a run or an artifact."""
    begins = (re.match(rf"(?:{'|'.join(FOLDERS)})/[\w.-]+", way) for way in ways_to(store, place))
    found = [match[0] for match in begins if match and is_plain_key(match[0])]
    return found[-1] if found else None


RUNS = "runs"


def find_run_name(store: Store, name: str) -> str:
    """The whole name of the run that is meant. Raises `ConfigError` if there are several, `RunError` if there is
    none.
    """
    runs = store.names(RUNS)
    if name in runs:
        return name
    found = made_by(store, name) or _one_of(
        name, "is the beginning of", [run for run in runs if name and run.startswith(name)]
    )
    if not found:
        raise RunError(f"there is no run {name!r} in {store.path(RUNS)}; {tell_runs_like(store, name)}")
    return found[0]


def made_by(store: Store, job: str) -> list[str]:
    """The one run that a job of this name has made, if any. Raises `ConfigError` if there are several."""
    runs = [run for run in store.names(RUNS) if re.fullmatch(re.escape(job) + r"-[0-9a-f]{8}", run)]
    return _one_of(job, "has made", runs)


def tell_runs_like(store: Store, name: str) -> str:
    """Which runs may be meant by a name that none has, as the end of a message."""
    runs = store.names(RUNS)
    if not runs:
        return f"{store.path(RUNS)} holds no run at all: check the store's name"
    return f"{tell_nearest(name, runs)} (`headrace list {store.url}` shows all)"


def _one_of(name: str, does: str, runs: list[str]) -> list[str]:
    if len(runs) > 1:
        more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        raise ConfigError(f"{name!r} {does} several runs: {', '.join(runs[:NAMED])}{more}; say which one is meant")
    return runs
