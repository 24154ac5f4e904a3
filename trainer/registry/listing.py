"""The runs of a store, a line each, newest first.

Of each run a few small files are read, whatever its length. Nothing is imported but what reads the store, so that the
list is there at once.
"""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from trainer.common.errors import ArtifactError, StorageError
from trainer.common.formats import Table, count, plural, score, show, show_json, text_table
from trainer.config.kinds import kind_of_run
from trainer.evaluation.measurement import read_result
from trainer.records.evaluations import best_by
from trainer.records.lease import LEASE, is_held
from trainer.records.plans import read_plan
from trainer.records.sealed import read_sealed, sealed_number, unseal_line
from trainer.records.shapes import remedy_of
from trainer.store.manifest import read_manifest
from trainer.store.names import BEST, CHAMPION, CHECKPOINTS, CONFIG, FINAL, FINAL_KIND, LAST, METRICS_FILE, PLAN
from trainer.store.storage import Store

log = logging.getLogger(__name__)


READERS = 32
"""Runs that are read at the same time from a store that answers from afar."""

TAIL_BYTES = 4096
"""Enough to hold the last record of most runs."""

EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.")
"""TensorBoard names its files by the second in which they were begun."""


class RunLine(NamedTuple):
    """What the list says of a run. `started` is ISO 8601 in UTC; `figure` decides which of its checkpoints is best."""

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
    """The list as text. Raises `StorageError` if the store cannot be read."""
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


def tell(url: str, as_json: bool = False) -> None:
    """Print the list of all runs. Nothing in the store is changed."""
    store = Store(url)
    store.require_there()
    if as_json:
        show_json(find_runs(store))
    else:
        show(list_runs(store))


def find_runs(store: Store) -> list[RunLine]:
    """All runs, newest first; those that have not begun to train are last. One that cannot be read says so."""
    read = partial(_read_line, store, _champions(store))
    names = store.names("runs")
    if store.local is not None:
        found = list(map(read, names))
    else:
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(read, names))
    return sorted((line for line in found if line), key=lambda line: line.started, reverse=True)


def state_of(store: Store, run_key: str, finished: bool) -> str:
    """How a run stands: finished, running (a living process holds it), or stopped."""
    return "finished" if finished else "running" if is_held(store, run_key) else "stopped"


def _champions(store: Store) -> dict[tuple[str, str], tuple[str, ...]]:
    """The names that a run's model is the champion of, by the run's key and its model's fingerprint."""
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
    """One run, or None if the folder holds none."""
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
                f"{store.path(key)}/{FINAL} holds the model of another run, of fingerprint {final.details['run']}, not "
                f"{config['fingerprint']}; put back the folder's own manifest, or start the run's command again"
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
        log.warning("%s cannot be told of: %s", store.path(key), error)  # the other runs are shown all the same
        return RunLine(name)


def _find_start(store: Store, key: str) -> str:
    """When training first began to keep records; if it has not, since when a process has held the run; or nothing."""
    begun = [int(found[1]) for name in store.names(f"{key}/tensorboard") if (found := EVENTS.match(name))]
    if begun:
        return datetime.fromtimestamp(min(begun), UTC).isoformat()
    try:
        held: dict[str, str] = read_sealed(store, f"{key}/{LEASE}") or {}
    except ArtifactError as error:  # the rest of the run can be told of
        log.warning("%s", error)
        return ""
    return held.get("since", "")


def _last_recorded(store: Store, key: str) -> int:
    """The step of the last record that is whole, found without reading those before."""
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
        tail *= 4  # such as for a record of figures by many corpora
    return 0
