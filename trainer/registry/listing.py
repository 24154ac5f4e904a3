"""List the runs of a store, one line each, newest first.

Only a few small files of each run are read, however long it is. This module imports no training libraries, so that the
list appears quickly.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from trainer.common.display import Table, count, plural, score, show, show_json, text_table
from trainer.common.errors import ArtifactError, StorageError
from trainer.config.kinds import kind_of_run
from trainer.evaluation.measurement import read_result
from trainer.records.evaluations import best_by
from trainer.records.lease import LEASE, is_held
from trainer.records.plans import read_plan
from trainer.records.sealed import read_sealed, sealed_number, unseal_line
from trainer.records.shapes import remedy_of
from trainer.store.manifest import read_manifest
from trainer.store.names import (
    BEST,
    CHAMPION,
    CHECKPOINTS,
    CONFIG,
    EVENTS,
    FINAL,
    FINAL_KIND,
    LAST,
    METRICS_FILE,
    PLAN,
    TENSORBOARD,
)
from trainer.store.storage import Store

log = logging.getLogger(__name__)


READERS = 32
"""How many runs are read at the same time from a remote store."""

TAIL_BYTES = 4096
"""Bytes read from the end of the metrics file; holds the last record of most runs."""


class RunLine(NamedTuple):
    """A run's line. `started` is ISO 8601 in UTC; `figure` is the one that selects the best checkpoint."""

    name: str
    kind: str = ""
    state: str = "unreadable"
    started: str = ""
    data: str = ""
    steps: int = 0
    total: int | None = None
    figure: str = ""
    best: float | None = None
    final: float | None = None
    champion_of: tuple[str, ...] = ()


def list_runs(store: Store) -> str:
    """Return the list as text; raises `StorageError` if the store cannot be read."""
    lines = find_runs(store)
    columns = ["Run", "Kind", "State", "Started (UTC)", "Data", "Steps", "Figure", "Best", "Final", "Champion of"]
    rows = [
        [
            line.name, line.kind, line.state, line.started[:16].replace("T", " "), line.data,
            f"{count(line.steps)} of {count(line.total)}", line.figure, score(line.best), score(line.final),
            ", ".join(line.champion_of),
        ]
        for line in lines
    ]  # fmt: skip
    return f"{text_table(Table(columns, rows, words=5))}\n{plural(len(lines), 'run')} in {store.path('runs')}\n"


def print_runs(url: str, as_json: bool = False) -> None:
    """Print the list of all runs, without changing the store."""
    store = Store(url)
    store.require_there()
    if as_json:
        show_json(find_runs(store))
    else:
        show(list_runs(store))


def find_runs(store: Store) -> list[RunLine]:
    """All runs, newest first; runs without a start time are last. A run that cannot be read has state `unreadable`."""
    read = partial(_read_line, store, _champions(store))
    names = store.names("runs")
    if store.local is not None:
        found = list(map(read, names))
    else:
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(read, names))
    return sorted((line for line in found if line), key=lambda line: line.started, reverse=True)


def state_of(store: Store, run_key: str, finished: bool) -> str:
    """A run's state: finished, running (a living process holds it), or stopped."""
    return "finished" if finished else "running" if is_held(store, run_key) else "stopped"


def _champions(store: Store) -> dict[tuple[str, str], tuple[str, ...]]:
    """The names of champions, by the run's key and its model's fingerprint."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in store.names("models"):
        try:
            history = read_sealed(store, f"models/{name}/{CHAMPION}")
        except ArtifactError as error:
            log.warning("%s", error)
            continue
        if history is not None:
            top = history["moves"][-1]
            place = (top["run"], top["fingerprint"])
            found[place] = (*found.get(place, ()), name)
    return found


def _read_line(store: Store, champions: dict[tuple[str, str], tuple[str, ...]], name: str) -> RunLine | None:
    """Read one run; None if the folder holds none."""
    key = f"runs/{name}"
    try:
        config = read_sealed(store, f"{key}/{CONFIG}")
        if config is None:
            if store.names(f"{key}/{CHECKPOINTS}"):
                log.warning("%s is missing; %s", store.path(f"{key}/{CONFIG}"), remedy_of(f"{key}/{CONFIG}"))
                return RunLine(name)
            return None
        plan, last, best = (read_sealed(store, f"{key}/{file}") or {} for file in (PLAN, LAST, BEST))
        if last and not plan:
            log.warning("%s is missing; %s", store.path(f"{key}/{PLAN}"), remedy_of(f"{key}/{PLAN}"))
        final = read_manifest(store, f"{key}/{FINAL}", FINAL_KIND)
        if final is not None and final.details["run"] != config["fingerprint"]:
            raise ArtifactError(
                f"{store.path(key)}/{FINAL} holds the model of another run: fingerprint {final.details['run']}, "
                f"expected {config['fingerprint']}; restore the folder's own manifest, or run the run's command again"
            )
        steps = last.get("step", 0)
        job, figure = config["job"], best_by(config["job"])
        kind, measured, named = kind_of_run(config), read_result(store, key, config), job["data"].get("name", "")
        return RunLine(
            name=name,
            kind=kind.name,
            state=state_of(store, key, bool(final)),
            started=_find_start(store, key),
            data=read_plan(plan).describe_data(named) if plan else named,
            steps=steps if final else max(steps, _last_recorded(store, key)),
            total=plan.get("total_steps"),
            figure=figure,
            best=(best.get("scores") or {}).get(figure),
            final=measured.figures().get(figure) if measured else None,
            champion_of=champions.get((key, final.fingerprint), ()) if final else (),
        )
    except (AttributeError, KeyError, TypeError, ValueError, ArtifactError, StorageError) as error:
        log.warning("%s cannot be read: %s", store.path(key), error)  # the other runs are still listed
        return RunLine(name)


def _find_start(store: Store, key: str) -> str:
    """The time of the first training records; without any, the time since when a process holds the run; or empty."""
    begun = [int(found[1]) for name in store.names(f"{key}/{TENSORBOARD}") if (found := EVENTS.match(name))]
    if begun:
        return datetime.fromtimestamp(min(begun), UTC).isoformat()
    try:
        lease: dict[str, str] = read_sealed(store, f"{key}/{LEASE}") or {}
    except ArtifactError as error:  # the rest of the run can still be listed
        log.warning("%s", error)
        return ""
    return lease.get("since", "")


def _last_recorded(store: Store, key: str) -> int:
    """The step of the last complete record, found by reading from the end of the file."""
    place, tail = f"{key}/{METRICS_FILE}", TAIL_BYTES
    try:
        size = store.size(place)
    except FileNotFoundError:
        return 0
    while size:
        lines = store.read_bytes(place, max(0, size - tail), size).split(b"\n")
        if whole := {number: line for line in lines if (number := sealed_number(place, line))}:
            return int(unseal_line(whole[max(whole)])["step"])
        if tail >= size:
            break
        tail *= 4  # a record with figures for many corpora may be longer
    return 0
