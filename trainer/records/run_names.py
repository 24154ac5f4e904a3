"""Resolution of names and paths given by users to keys of a store."""

import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainer.common.display import some, suggest_nearest
from trainer.common.errors import ConfigError, RunError
from trainer.store.details import DATA_KINDS
from trainer.store.manifest import fingerprinted
from trainer.store.names import is_plain_key
from trainer.store.storage import Store

RUN_PREFIX = "runs/"
DATA_FOLDERS = tuple(kind.folder for kind in DATA_KINDS.values())
FOLDERS = ("runs", *DATA_FOLDERS)
"""Folders of artifacts that have inputs or are inputs of others."""


def is_path(text: str) -> bool:
    """Whether a text can only be a path, not a key: it begins with `/`, `./` or `../`."""
    return text.startswith(("/", "./", "../"))


def ways_to(store: Store, text: str) -> Iterator[str]:
    """Candidates for the key of a text: as written, normalised, and in a local store as a path below its root.

    Of a text that `is_path`, only the last.
    """
    if not is_path(text):
        yield text
        yield posixpath.normpath(text)
    if store.local is not None:
        root = store.local.resolve()
        # Relative to the store first, then to the working directory.
        for start in [Path()] if is_path(text) else [store.local, Path()]:
            # A cyclic link, an invalid path, or one outside the store.
            with suppress(OSError, RuntimeError, ValueError):
                yield (start / text).resolve().relative_to(root).as_posix()


def run_at(store: Store, place: str | None) -> str | None:
    """The key of the run that a key or path is inside of, or None; also None if there is no place."""
    key = None if place is None else made_at(store, place)
    return key if key is not None and key.startswith(RUN_PREFIX) else None


def made_at(store: Store, place: str) -> str | None:
    """The key of the run or artifact that a key or path is inside of, or None."""
    begins = (re.match(rf"(?:{'|'.join(FOLDERS)})/[\w.-]+", way) for way in ways_to(store, place))
    found = [match[0] for match in begins if match and is_plain_key(match[0])]
    return found[-1] if found else None


RUNS = "runs"


def find_run_name(store: Store, name: str, exact: bool = False) -> str:
    """The full name of a run given by its name, its job's name or, unless `exact`, a prefix. Raises `ConfigError` if
    several match, `RunError` if none does.

    Use `exact` for what changes something: a name that does not exist may be a prefix of another run's.
    """
    runs = store.names(RUNS)
    if name in runs:
        return name
    found = made_by(store, name)
    if not found and name and not exact:
        found = _one_of(name, "is a prefix of", [run for run in runs if run.startswith(name)])
    if not found:
        raise RunError(f"there is no run {name!r} in {store.path(RUNS)}; {suggest_runs(store, name)}")
    return found[0]


def made_by(store: Store, job: str) -> list[str]:
    """The run of the job with this name, if any; none if this is the full name of a run. Raises `ConfigError` if there
    are several.
    """
    names = store.names(RUNS)
    return [] if job in names else _one_of(job, "has", fingerprinted(names, job, 8))


def suggest_runs(store: Store, name: str, prefix: str = "") -> str:
    """Suggested runs for an unknown name, as the end of a message; each with a prefix, such as `runs/`."""
    runs = store.names(RUNS)
    if not runs:
        return f"{store.path(RUNS)} has no runs: check the store's path"
    nearest = suggest_nearest(f"{prefix}{name}", [f"{prefix}{run}" for run in runs])
    return f"{nearest} (`headrace list {store.url}` shows all)"


def _one_of(name: str, does: str, runs: list[str]) -> list[str]:
    if len(runs) > 1:
        raise ConfigError(f"{name!r} {does} several runs: {some(runs)}; give the full name")
    return runs
