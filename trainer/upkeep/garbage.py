"""What nothing in a store reaches any more, found and removed.

Runs, champions with their history, and pins stay, with everything that they were made from, and so does for some days what a
preparation has found to be made already, and a run that waits for a person's approval. Tokenizers, shard sets and encoded
sets that none of them reaches go, but not the young, whose run is still to come, nor the newest set of each corpus, which the
next preparation takes unchanged shards from. While a set of shards is in the making, or was left half made, all sets of its
corpus and all tokenizers stay. Decisions about raw text go as these do, and with them what was measured for them alone.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import NamedTuple

from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.config.jobs import GarbageJob
from trainer.records.holds import forget_ended
from trainer.runs.references import ARTIFACTS, References
from trainer.store.storage import Store
from trainer.store.stored import Stored
from trainer.upkeep.measures import find_unneeded, remove_measures
from trainer.upkeep.removal import remove_artifact, remove_run
from trainer.upkeep.roots import Folder, days_ago, find_kept, find_old_runs, find_roots, list_folders
from trainer.upkeep.telling import describe, sum_up

log = logging.getLogger(__name__)

NOUN = "folder that nothing reaches", "folders that nothing reaches"


class Garbage(NamedTuple):
    """What nothing reaches, and when it was last written to.

    `size` is what its removal frees: bytes that shard sets on a disk share count with the last of them.
    """

    what: str
    key: str
    size: int
    modified: datetime


def collect(job: GarbageJob) -> Iterator[Garbage]:
    """What nothing reaches, one by one as it is removed, or would be. Lists the whole store, once.

    What cannot be read or removed stays, with all that it may need, and the others go. Raises `StorageError` if there is no
    such store, and at the end `RunError` or `StorageError` that says what stayed so.
    """
    store = Store(job.store)
    store.require_there()
    folders, references = list_folders(store), References(store)
    kept = find_kept(folders.values(), days_ago(job.older_than_days))
    before = None if job.runs_older_than_days is None else days_ago(job.runs_older_than_days)
    old = find_old_runs(store, folders.values(), before) if before else set()
    for run in old:
        references.needs_of(run)
    old -= references.doubts.keys()
    problems: list[str] = []

    def is_reached(key: str) -> bool:
        references.forget_runs()
        try:
            return key in references.reached(find_roots(store, folders, kept, {key}, last=key))
        except RunError as error:
            log.warning("%s: %s", store.path(key), error)
            return True

    reached = references.reached(find_roots(store, folders, kept, old))
    artifacts = [
        key for kind in ARTIFACTS for key in sorted(folders) if key.startswith(f"{kind}/") and folders[key].is_artifact
    ]
    links: Counter[int] = Counter()
    gone = set[str]()
    for key in [*_dependents_first(old - reached, references), *(key for key in artifacts if key not in reached)]:
        if job.remove:
            look = partial(is_reached, key)
            remove = partial(remove_run, store, key, before) if before and key in old else partial(remove_artifact, store, key)
            if not _is_removed(store, key, partial(remove, look), problems):
                continue
            references.forget(key)
        gone.add(key)
        kind = key.partition("/")[0]
        yield Garbage(ARTIFACTS.get(kind, "run"), key, _freed(folders[key].files, links), folders[key].modified)
    yield from _collect_measures(store, job, folders.values(), gone, problems)
    if job.remove:
        forget_ended(store)
    if references.doubts:
        raise RunError("; ".join([*map(str, references.doubts.values()), *problems]))
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
    waiting, ordered = {run: references.of(run) for run in runs}, list[str]()
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


def tell(found: Iterable[Garbage], removed: bool, how: str = "--remove") -> None:
    """Print what is found, as it is found, and the sum; `how` it is removed, if it was not."""
    sizes: list[int] = []
    try:
        for each in found:
            sizes.append(each.size)
            print(describe(each.what, each.size, each.modified, each.key))
    except (RunError, StorageError):
        print(sum_up(sizes, removed, *NOUN, how))
        raise
    print(sum_up(sizes, removed, *NOUN, how))
