"""Garbage collection: find and delete what nothing in a store references.

    measures/CORPUS-READING/MEASURE-OPTIONS/NUMBER-COUNT-PIECES.npz    the newest file of each unit is kept as long as
                                                                       decisions that were computed from it
                                                                       (curation/units.py)
    measures/overlaps/EVALUATION.npz                                   kept with decisions that keep these sets out
    measures/pairs/PASS/…                                              to resume an interrupted curation

Recent measures are kept, as a running curation may use them. A curation that finds files deleted that it was about to
reuse reports this, and computes them when it is started again.

Runs, champions with their history, and pins are kept, with all their inputs. For some days, so are artifacts that a
preparation found finished, and a run that waits for approval. Tokenizers, shard sets and encoded sets that none of
these reaches are deleted, except recent ones, whose run may still start, and the newest set of each corpus, from which
the next preparation reuses unchanged shards. While a shard set is incomplete, all sets of its corpus and all tokenizers
are kept. The same rules apply to curation decisions; measures that only deleted decisions needed are deleted with them.
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
from trainer.store.manifest import MANIFEST, name_in, read_manifest
from trainer.store.names import BEST, CHECKPOINTS, CONFIG, FINAL, LAST
from trainer.store.storage import Store

log = logging.getLogger(__name__)


SHARDS, TOKENIZERS, DECISIONS, MEASURES = "shards/", "tokenizers/", "decisions/", "measures/"
FOLDER = re.compile(rf"({'|'.join(FOLDERS)})/[^/]+(?=/)|{MEASURES}[^/]+/[^/]+")


class Folder(NamedTuple):
    """The folder of a run, an artifact, or measures of one kind, with its files."""

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
    """The artifacts kept even if unreferenced: those modified since then, and the newest shard set of each corpus."""
    artifacts = sorted((folder for folder in folders if folder.is_artifact), key=lambda folder: folder.modified)
    newest = {name_in(folder.key): folder.key for folder in artifacts if folder.key.startswith(SHARDS)}
    return {folder.key for folder in artifacts if folder.modified >= since} | set(newest.values())


def find_old_runs(store: Store, folders: Iterable[Folder], before: datetime) -> set[str]:
    """The runs not written to since then and not held by a living process.

    Leases are ignored: after a killed removal, the lease may be the only new file of a run.
    """
    runs = [folder for folder in folders if folder.key.startswith(RUN_PREFIX)]
    old = [
        run.key for run in runs if all(file.modified < before for file in run.files if file.key != f"{run.key}/{LEASE}")
    ]
    return {key for key in old if not is_held(store, key)}


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def find_roots(store: Store, folders: Mapping[str, Folder], kept: set[str], without: set[str]) -> set[str]:
    """The roots now in the store: runs except `without`, champions, pins, holds, `kept`, and folders not listed before.

    While shard sets are incomplete, the roots also hold the other sets of their corpora, all tokenizers and decisions.
    """
    pins = pinned(store) | held(store)  # read before the champions: a run is held until it becomes one
    present = {f"{kind}/{name}" for kind in FOLDERS for name in store.names(kind)}
    runs = {key for key in present if key.startswith(RUN_PREFIX)} - without
    left_out = any(key.startswith(RUN_PREFIX) for key in without)  # else champions are among the runs
    champions = {move.run for name in store.names("models") for move in moves(store, name)} if left_out else set[str]()
    new = {key for key in present - folders.keys() if store.names(key)}  # some file systems still list emptied folders
    begun = new | {folder.key for folder in folders.values() if not folder.is_artifact}
    making = {name_in(key) for key in begun if key.startswith(SHARDS)}
    needed = {key for key in present if key.startswith(SHARDS) and name_in(key) in making}
    made_with = {key for key in present if key.startswith((TOKENIZERS, DECISIONS)) and making}
    return runs | champions | pins | kept | new | needed | made_with


def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
    """Remove an artifact unless something references it again; returns whether it was removed.

    The manifest is deleted first, which marks the artifact as being removed; then references are checked again. A
    process that pins or holds the artifact, or claims a run that reads it, first records that and then checks for the
    manifest. So either this function sees the record and restores the manifest, or that process finds no artifact;
    it never finds half of one. A process that rebuilds the artifact writes its manifest itself.

    One request separates the last check from the deletion. An artifact that is published in between, in a remote store,
    is found damaged when it is next read, and is rebuilt.
    """
    try:
        manifest = store.read_bytes(f"{key}/{MANIFEST}")
    except FileNotFoundError:
        return False  # another process rebuilds or removes it
    needed = True
    try:
        store.delete(f"{key}/{MANIFEST}")
        needed = is_reached()
    finally:  # also if the deletion's response was lost
        if needed and not store.exists(f"{key}/{STARTED}"):
            store.create(f"{key}/{MANIFEST}", manifest)
    if needed or any(store.exists(f"{key}/{name}") for name in (STARTED, MANIFEST)):
        return False
    store.delete(key, first=MANIFEST)
    return True


def remove_run(store: Store, run: str, before: datetime, is_reached: Callable[[], bool]) -> bool:
    """Remove a run, unless it was written to or referenced since then, or a process holds it; returns whether it was.

    Its lease first marks it as being removed, and references are checked after that: a process that pins or promotes
    the run checks the lease after writing its own record. The final model is deleted first, then the pointers to
    checkpoints, and config.json last, so that after a kill at any instant the run can be resumed or removed.
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
        with suppress(OSError):  # not empty: a new run of this name has started
            (store.local / run).rmdir()
    return True


def find_unneeded(store: Store, folders: Iterable[Folder], gone: set[str], before: datetime) -> Iterator[Folder]:
    """The folders of measures, with their files not written to since then and not needed by any decisions.

    Decisions in `gone` need none. Raises `ArtifactError` if the needs of the others cannot be read.
    """
    decisions = {f"{KIND}/{name}" for name in store.names(KIND)} - gone
    needed = {key for each in decisions for key in _made_from(store, each)}
    for folder in sorted(folders, key=lambda folder: folder.key):
        if folder.key.startswith(MEASURES):
            kept = _newest_of_units(folder.files) if folder.key in needed else set[str]()
            if old := [file for file in folder.files if file.modified < before and file.key not in kept]:
                yield Folder(folder.key, old)


def remove_measures(store: Store, unneeded: Folder) -> bool:
    """Remove exactly these files, as a curation may have started to write others beside them; returns True."""
    for file in unneeded.files:
        store.delete(file.key)
    if store.local is not None:
        place = store.local / unneeded.key
        for folder in [*{(store.local / file.key).parent for file in unneeded.files} - {place}, place, place.parent]:
            with suppress(OSError):  # a file, or not empty
                folder.rmdir()
    return True


def _made_from(store: Store, decisions: str) -> list[str]:
    """The keys of measures, and of evaluation sets to keep out, from which decisions were computed."""
    manifest = read_manifest(store, decisions, KIND)
    if manifest is None:
        return []
    kept_out = manifest.details["kept_out"]
    return [*manifest.details["measures"], *([kept_out["key"], kept_out["examples"]] if kept_out else [])]


def _newest_of_units(files: Iterable[Stored]) -> set[str]:
    """The newest file of each unit; a file's name is that of its unit followed by its pieces."""
    newest = {
        file.key.rpartition("-")[0]: file.key for file in sorted(files, key=lambda file: (file.modified, file.key))
    }
    return set(newest.values())


def collect(job: GarbageJob) -> Iterator[Garbage]:
    """Yield each unreferenced folder as it is removed, or would be. Lists the whole store once.

    Raises `StorageError` if there is no such store, and `RunError`, before removing anything, if a record cannot be
    read that may reference others. A folder that cannot be removed is skipped; `StorageError` reports it at the end.
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
            folders.pop(key)  # if it still exists, or exists again, it counts as new and keeps its inputs
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
    """Yield the measures that no existing decisions need, those in `gone` aside."""
    try:
        unneeded = list(find_unneeded(store, folders, gone, days_ago(job.older_than_days)))
    except ArtifactError as error:
        log.warning("%s; until then all measures are kept", error)
        return
    for folder in unneeded:
        if not job.remove or _is_removed(store, folder.key, partial(remove_measures, store, folder), problems):
            yield Garbage("measures", folder.key, sum(file.size for file in folder.files), folder.modified)


def _is_removed(store: Store, key: str, remove: Callable[[], bool], problems: list[str]) -> bool:
    """Call `remove`; returns whether it removed. An error about a single file is logged and added to `problems`."""
    try:
        if remove():
            return True
        log.warning("%s is in use again: kept", store.path(key))
    except StorageError as error:
        if store.local is None:
            raise  # the whole store is unreachable
        log.warning("%s", error)
        problems.append(str(error))
    return False


def _dependents_first(runs: set[str], references: References) -> list[str]:
    """Order runs so that each comes before the runs that it depends on."""
    waiting, ordered = {run: references.of(run) or set() for run in runs}, list[str]()
    while waiting:
        needed = set().union(*waiting.values())
        free = sorted(waiting.keys() - needed) or sorted(waiting)  # reused run names may form a cycle
        ordered += free
        waiting = {run: waiting[run] for run in waiting.keys() - free}
    return ordered


def _freed(files: Iterable[Stored], links: Counter[int]) -> int:
    """The bytes freed by removing these files; `links` counts, by inode, the hard links removed so far."""
    freed = 0
    for file in files:
        links[file.inode] += 1
        if file.links == 1 or links[file.inode] == file.links:
            freed += file.size
    return freed
