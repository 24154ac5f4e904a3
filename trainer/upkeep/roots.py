"""What stays in a store by itself, whatever reaches it: runs, champions, pins, the young, and what the next work needs."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from trainer.data.tokenization import STARTED
from trainer.records.holds import held
from trainer.records.lease import LEASE, is_held
from trainer.records.names import FOLDERS, RUN_PREFIX
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store
from trainer.store.stored import Stored
from trainer.upkeep.pins import pinned, require_intact_pins
from trainer.upkeep.promotion import moves

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
    old = [run.key for run in runs if all(file.modified < before for file in run.files if file.key != f"{run.key}/{LEASE}")]
    return {key for key in old if not is_held(store, key)}


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def find_roots(store: Store, listed: Iterable[str], kept: set[str], without: set[str], last: str | None = None) -> set[str]:
    """What stays by itself as the store is now: all but some runs, champions, pins, holds, what is kept or not listed yet.

    While shards are made, what they may be taken over from and made with stays too. For a last look at one thing, what cannot
    reach that is not looked for: each look costs requests.
    """
    pins = pinned(store) | held(store)  # before the champions: a run is held until it is one
    there = {f"{kind}/{name}" for kind in FOLDERS for name in store.names(kind)}
    if last is None:
        require_intact_pins(store)
    runs = {key for key in there if key.startswith(RUN_PREFIX)} - without
    left_out = any(key.startswith(RUN_PREFIX) for key in without)  # else champions are among the runs
    champions = {move.run for name in store.names("models") for move in moves(store, name)} if left_out else set[str]()
    sets = {key for key in there if key.startswith(SHARDS) and _may_matter(key, last)}
    making = {_corpus_of(key) for key in sets if _is_in_the_making(store, key, key in without)}
    needed = {key for key in sets if _corpus_of(key) in making}
    made_with = {key for key in there if key.startswith((TOKENIZERS, DECISIONS)) and making}
    return runs | champions | pins | kept | there.difference(listed) | needed | made_with


def _may_matter(shard_set: str, last: str | None) -> bool:
    """Whether a set that is in the making could need the thing: a set of its corpus, or any tokenizer or decisions."""
    if last is None or last.startswith((TOKENIZERS, DECISIONS)):
        return True
    return last.startswith(SHARDS) and _corpus_of(last) == _corpus_of(shard_set)


def _is_in_the_making(store: Store, key: str, removing: bool) -> bool:
    """Whether a set has no manifest yet; of one that lost it because it is being removed, whether it was begun anew."""
    if store.exists(f"{key}/{MANIFEST}"):
        return False
    return store.exists(f"{key}/{STARTED}") if removing else bool(store.names(key))


def _corpus_of(key: str) -> str:
    return key.removeprefix(SHARDS).rpartition("-")[0]
