"""Runs by the names that people give: whole, as the name of the job that made the run, or by its beginning."""

import re

from trainer.common.errors import ConfigError, RunError
from trainer.common.nearest import NAMED, tell_nearest
from trainer.store.storage import Store

RUNS = "runs"


def find_run_name(store: Store, name: str) -> str:
    """The whole name of the run that is meant. Raises `ConfigError` if there are several, `RunError` if there is none."""
    runs = store.names(RUNS)
    if name in runs:
        return name
    found = made_by(store, name) or _one_of(name, "is the beginning of", [run for run in runs if name and run.startswith(name)])
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
