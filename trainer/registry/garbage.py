"""What nothing in a store reaches any more, found and removed.

    measures/CORPUS-READING/MEASURE-OPTIONS/NUMBER-COUNT-PIECES.npz    the newest file of each unit stays as long as
                                                                       decisions that were made from such measures do
                                                                       (curation/units.py)
    measures/overlaps/EVALUATION.npz                                   stays with decisions that keep these sets out
    measures/pairs/PASS/…                                              for going on with a curation that was broken off

Whatever is young stays: a curation may be at work on it. One that finds gone what it was about to take over says so,
and makes it when it is started again.

Runs, champions with their history, and pins stay, with everything that they were made from, and so does for some days
what a preparation has found to be made already, and a run that waits for a person's approval. Tokenizers, shard sets
and encoded sets that none of them reaches go, but not the young, whose run is still to come, nor the newest set of each
corpus, which the next preparation takes unchanged shards from. While a set of shards is in the making, or was left half
made, all sets of its corpus and all tokenizers stay. Decisions about raw text go as these do, and with them what was
measured for them alone.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.config.jobs import GarbageJob
from trainer.data.decisions import KIND
from trainer.data.tokenization import STARTED
from trainer.records.lease import LEASE, Lease, forget_ended, held, is_held
from trainer.records.run_names import FOLDERS, RUN_PREFIX
from trainer.registry.leftovers import Garbage
from trainer.registry.promotion import moves
from trainer.registry.references import ARTIFACTS, References, pinned, require_intact_pins
from trainer.store.local import Stored
from trainer.store.manifest import MANIFEST, read_manifest
from trainer.store.names import BEST, CHECKPOINTS, CONFIG, FINAL, LAST
from trainer.store.storage import Store

log = logging.getLogger(__name__)


SHARDS, TOKENIZERS, DECISIONS, MEASURES = "shards/", "tokenizers/", "decisions/", "measures/"
FOLDER = re.compile(rf"({'|'.join(FOLDERS)})/[^/]+(?=/)|{MEASURES}[^/]+/[^/]+")


class Folder(NamedTuple):
    """A run, an artifact, or measures of one kind, with its files."""

    key: str
    files: list[Stored]

    @property
    def modified(self) -> datetime:
        return max(file.modified for file in self.files)

    @property
    def is_artifact(self) -> bool:
        return any(file.key == f"{self.key}/{MANIFEST}" for file in self.files) and not self.key.startswith(RUN_PREFIX)


def list_folders(store: Store) -> dict[str, Folder]:
    folders: dict[str, Folder] = {}
    for file in store.walk():
        if place := FOLDER.match(file.key):
            folders.setdefault(place[0], Folder(place[0], [])).files.append(file)
    return folders


def find_kept(folders: Iterable[Folder], since: datetime) -> set[str]:
    """The artifacts that stay whether they are reached or not: the young, and the newest set of each corpus."""
    artifacts = sorted((folder for folder in folders if folder.is_artifact), key=lambda folder: folder.modified)
    newest = {_corpus_of(folder.key): folder.key for folder in artifacts if folder.key.startswith(SHARDS)}
    return {folder.key for folder in artifacts if folder.modified >= since} | set(newest.values())


def find_old_runs(store: Store, folders: Iterable[Folder], before: datetime) -> set[str]:
    """The runs that nothing was written to since then, and that no living process holds.

    A lease does not count: it may be all that is new of a run whose removal was broken off by a kill.
    """
    runs = [folder for folder in folders if folder.key.startswith(RUN_PREFIX)]
    old = [
        run.key for run in runs if all(file.modified < before for file in run.files if file.key != f"{run.key}/{LEASE}")
    ]
    return {key for key in old if not is_held(store, key)}


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def find_roots(store: Store, folders: Mapping[str, Folder], kept: set[str], without: set[str]) -> set[str]:
    """What stays by itself as the store is now: all but some runs, champions, pins, holds, what is kept or not listed
    yet.

    While shards are made, what they may be taken over from and made with stays too.
    """
    pins = pinned(store) | held(store)  # before the champions: a run is held until it is one
    there = {f"{kind}/{name}" for kind in FOLDERS for name in store.names(kind)}
    runs = {key for key in there if key.startswith(RUN_PREFIX)} - without
    left_out = any(key.startswith(RUN_PREFIX) for key in without)  # else champions are among the runs
    champions = {move.run for name in store.names("models") for move in moves(store, name)} if left_out else set[str]()
    new = {key for key in there - folders.keys() if store.names(key)}  # some file systems go on listing emptied folders
    begun = new | {folder.key for folder in folders.values() if not folder.is_artifact}
    making = {_corpus_of(key) for key in begun if key.startswith(SHARDS)}
    needed = {key for key in there if key.startswith(SHARDS) and _corpus_of(key) in making}
    made_with = {key for key in there if key.startswith((TOKENIZERS, DECISIONS)) and making}
    return runs | champions | pins | kept | new | needed | made_with


def _corpus_of(key: str) -> str:
    return key.removeprefix(SHARDS).rpartition("-")[0]


def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
    """Remove an artifact, unless something reaches it again; returns whether it is gone.

    Its manifest goes first, which says to others that it is being removed. Then one looks again. Who pins or holds it,
    or claims a run that reads it, writes that first and then looks for the manifest: so either that is seen here, and
    the manifest is put back, or no artifact is found there, and never half of one. Who makes it anew writes the
    manifest itself.

    Between the last look for that and the deletion lies one request. What is published within it on a remote store is
    found damaged when it is next looked at, and made anew.
    """
    try:
        manifest = store.read_bytes(f"{key}/{MANIFEST}")
    except FileNotFoundError:
        return False  # another process makes it anew, or removes it
    needed = True
    try:
        store.delete(f"{key}/{MANIFEST}")
        needed = is_reached()
    finally:  # also after a deletion whose answer was lost
        if needed and not store.exists(f"{key}/{STARTED}"):
            store.create(f"{key}/{MANIFEST}", manifest)
    if needed or any(store.exists(f"{key}/{name}") for name in (STARTED, MANIFEST)):
        return False
    store.delete(key, first=MANIFEST)
    return True


def remove_run(store: Store, run: str, before: datetime, is_reached: Callable[[], bool]) -> bool:
    """Remove a run, unless something was written to it since, reaches it again, or a process continues it.

    Returns whether it is gone. Its lease says that it is being removed before one looks for what reaches it: who pins
    or promotes it looks at the lease after that is written. The final model goes first, then what names checkpoints,
    and last the record of whose they are: after a kill at any instant the run can still be continued, or removed.
    """
    try:
        with Lease(store, run, removing=True) as lease:
            if any(file.modified >= before for file in store.walk(run) if file.key != f"{run}/{LEASE}") or is_reached():
                return False
            inside = [f"{CHECKPOINTS}/{name}" for name in store.names(f"{run}/{CHECKPOINTS}")]
            first = [FINAL, LAST, BEST, *inside]
            others = [name for name in store.names(run) if name not in (*first, CONFIG, LEASE)]
            for name in [*first, *others, CONFIG]:
                lease.check()
                store.delete(f"{run}/{name}", first=MANIFEST)
    except RunError:
        return False
    if store.local is not None:
        with suppress(OSError):  # it is not empty: a new run has begun there
            (store.local / run).rmdir()
    return True


def find_unneeded(store: Store, folders: Iterable[Folder], gone: set[str], before: datetime) -> Iterator[Folder]:
    """The folders of measures with those of their files that were not written to since then and no decisions need.

    Decisions that are `gone`, or would be, need none. Raises `ArtifactError` if it cannot be told what the others need.
    """
    decisions = {f"{KIND}/{name}" for name in store.names(KIND)} - gone
    needed = {key for each in decisions for key in _made_from(store, each)}
    for folder in sorted(folders, key=lambda folder: folder.key):
        if folder.key.startswith(MEASURES):
            kept = _newest_of_units(folder.files) if folder.key in needed else set[str]()
            if old := [file for file in folder.files if file.modified < before and file.key not in kept]:
                yield Folder(folder.key, old)


def remove_measures(store: Store, unneeded: Folder) -> bool:
    """Remove these files, and no others: a curation may have begun to write beside them. Returns that they are gone."""
    for file in unneeded.files:
        store.delete(file.key)
    if store.local is not None:
        place = store.local / unneeded.key
        for folder in [*{(store.local / file.key).parent for file in unneeded.files} - {place}, place, place.parent]:
            with suppress(OSError):  # it was a file, or is not empty
                folder.rmdir()
    return True


def _made_from(store: Store, decisions: str) -> list[str]:
    """The folders of measures, and what is looked for of evaluation sets, that decisions were made from."""
    manifest = read_manifest(store, decisions, KIND)
    if manifest is None:
        return []
    kept_out = manifest.details["kept_out"]
    return [*manifest.details["measures"], *([kept_out["key"], kept_out["examples"]] if kept_out else [])]


def _newest_of_units(files: Iterable[Stored]) -> set[str]:
    """Of each unit the file that was written last; a file is named by its unit, and then by the pieces that were in
    it.
    """
    newest = {
        file.key.rpartition("-")[0]: file.key for file in sorted(files, key=lambda file: (file.modified, file.key))
    }
    return set(newest.values())


def collect(job: GarbageJob) -> Iterator[Garbage]:
    """What nothing reaches, one by one as it is removed, or would be. Lists the whole store, once.

    Raises `StorageError` if there is no such store, `RunError` if something cannot be read that may need other things:
    nothing is removed then. What cannot be removed stays, and the others go; at the end a `StorageError` says it.
    """
    store = Store(job.store)
    store.require_there()
    require_intact_pins(store, job.remove)
    folders, references = list_folders(store), References(store)
    kept = find_kept(folders.values(), days_ago(job.older_than_days))
    before = None if job.runs_older_than_days is None else days_ago(job.runs_older_than_days)
    old = find_old_runs(store, folders.values(), before) if before else set()
    reached = references.reached(find_roots(store, folders, kept, old))
    problems: list[str] = []

    def is_reached(key: str) -> bool:
        try:
            return key in references.reached(find_roots(store, folders, kept, {key}))
        except RunError as error:
            log.warning("%s: %s", store.path(key), error)
            return True

    artifacts = [
        key for kind in ARTIFACTS for key in sorted(folders) if key.startswith(f"{kind}/") and folders[key].is_artifact
    ]
    links: Counter[int] = Counter()
    gone = set[str]()
    for key in [*_dependents_first(old - reached, references), *(key for key in artifacts if key not in reached)]:
        folder = folders[key]
        if job.remove:
            look = partial(is_reached, key)
            remove = (
                partial(remove_run, store, key, before)
                if before and key in old
                else partial(remove_artifact, store, key)
            )
            removed = _is_removed(store, key, partial(remove, look), problems)
            folders.pop(key)  # if it is there, or there again, it counts as come since, and keeps what it is made with
            if not removed:
                continue
        gone.add(key)
        kind = key.partition("/")[0]
        yield Garbage(ARTIFACTS.get(kind, "run"), key, _freed(folder.files, links), folder.modified)
    yield from _collect_measures(store, job, folders.values(), gone, problems)
    if job.remove:
        forget_ended(store)
    if problems:
        raise StorageError("; ".join(problems))


def _collect_measures(
    store: Store, job: GarbageJob, folders: Iterable[Folder], gone: set[str], problems: list[str]
) -> Iterator[Garbage]:
    """What was measured, and no decisions need that are there now, once those that are `gone` are."""
    try:
        unneeded = list(find_unneeded(store, folders, gone, days_ago(job.older_than_days)))
    except ArtifactError as error:
        log.warning("%s; until then what was measured stays", error)
        return
    for folder in unneeded:
        if not job.remove or _is_removed(store, folder.key, partial(remove_measures, store, folder), problems):
            yield Garbage("measures", folder.key, sum(file.size for file in folder.files), folder.modified)


def _is_removed(store: Store, key: str, remove: Callable[[], bool], problems: list[str]) -> bool:
    """Remove something; returns whether it is gone. Where one file cannot be removed, that is noted."""
    try:
        if remove():
            return True
        log.warning("%s is in use again: kept", store.path(key))
    except StorageError as error:
        if store.local is None:
            raise  # the store is away, and not this file alone
        log.warning("%s", error)
        problems.append(str(error))
    return False


def _dependents_first(runs: set[str], references: References) -> list[str]:
    """The runs in an order in which each comes before those that it was made from."""
    waiting, ordered = {run: references.of(run) or set() for run in runs}, list[str]()
    while waiting:
        needed = set().union(*waiting.values())
        free = sorted(waiting.keys() - needed) or sorted(waiting)  # names that were used twice may need each other
        ordered += free
        waiting = {run: found for run, found in waiting.items() if run not in free}
    return ordered


def _freed(files: Iterable[Stored], links: Counter[int]) -> int:
    """The bytes that have no other name once these files are gone; `links` counts the names that are gone already."""
    freed = 0
    for file in files:
        links[file.inode] += 1
        if file.links == 1 or links[file.inode] == file.links:
            freed += file.size
    return freed
