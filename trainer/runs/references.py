"""What in a store is made from what, by the keys that records name.

    runs/X/config.json, eval.json     its tokenizer, shards or encoded set, and the run whose model it started from
    shards/X/manifest.json            its tokenizer, and the decisions about its text
    tokenizers/X/manifest.json        the decisions about the text that it was trained on
    evaluations/X.json                the shards that a run's checkpoint was measured on

Whatever looks like a key counts, wherever in a record it stands: also the path of a tokenizer that was taken from a run's
folder, say. Rather too much is reached than too little. A local path is followed through links as it is now, on this machine: a
link that was pointed elsewhere, or is not there, does not tell what was behind it.
"""

import logging
import posixpath
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.corpus.decisions import KIND as DECISIONS
from trainer.corpus.shards import KIND as SHARDS
from trainer.corpus.tokenizer import KIND as TOKENIZER
from trainer.labelled.encoded import KIND as ENCODED
from trainer.records.lease import is_held
from trainer.records.seals import read_sealed, remedy_of
from trainer.store.manifest import MANIFEST, read_manifest
from trainer.store.places import CONFIG, EVALUATION, FINAL, LAST, PLAN
from trainer.store.plain_names import is_plain_key
from trainer.store.storage import Store

log = logging.getLogger(__name__)

RUNS = "runs/"
ARTIFACTS = {"encoded": ENCODED, "shards": SHARDS, "tokenizers": TOKENIZER, "decisions": DECISIONS}
"""Folders of artifacts that runs are made from, with the kind of those; a later one is never made from an earlier one."""
KINDS = ("runs", *ARTIFACTS)
EVALUATIONS = "evaluations"

KEY = re.compile(rf"(?<![\w.-])(?=((?:{'|'.join(KINDS)})/[\w.-]+))")


class UnknownNeeds(RunError):
    """What something was made from cannot be told; it may be anything of some kinds."""

    def __init__(self, message: str, kinds: Iterable[str]) -> None:
        super().__init__(message)
        self.kinds = tuple(kinds)


class References:
    """Reads of a store what its records name. What was read once of an artifact or an evaluation does not change.

    `doubts`: the things whose needs could not be told, by key; all that they may need counts as reached.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.doubts: dict[str, UnknownNeeds] = {}
        self._known: dict[str, set[str]] = {}
        self._measured: dict[str, tuple[set[str], set[str]]] = {}

    def of(self, key: str) -> set[str]:
        """The keys that a run or an artifact names; none if it does not exist.

        Raises `UnknownNeeds` if that cannot be read, or a run is just starting and has not said it yet.
        """
        if key not in self._known:
            found = self._of_run(key) if key.startswith(RUNS) else self._of_artifact(key)
            if found is None:
                return set()
            self._known[key] = found - {key}
        return self._known[key]

    def reached(self, roots: Iterable[str]) -> set[str]:
        """The roots, and all that they are made from, directly or not, or may be."""
        evaluations = [self._of_evaluation(name) for name in self._store.names(EVALUATIONS)]
        waiting = {*roots, *(key for runs, read in evaluations if not runs for key in read)}
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.needs_of, [key for key in waiting if key.startswith(RUNS)]))
        found: set[str] = set()
        while waiting:
            key = waiting.pop()
            found.add(key)
            needs = self.needs_of(key)
            if key in self._known:  # a run whose folder is empty was not measured on anything
                needs = needs.union(*(read for runs, read in evaluations if key in runs))
            waiting |= needs - found
        return found

    def needs_of(self, key: str) -> set[str]:
        """What a run or an artifact names; all that it may need if that cannot be told, which is noted as a doubt."""
        try:
            return self.of(key)
        except UnknownNeeds as error:
            return self._all_of(key, error)

    def _all_of(self, key: str, error: UnknownNeeds) -> set[str]:
        if key not in self.doubts:
            log.warning("%s", error)
        self.doubts[key] = error
        return {f"{kind}/{name}" for kind in error.kinds for name in self._store.names(kind)}

    def forget(self, key: str) -> None:
        """Read it again the next time: it was removed. Some file systems go on listing its folder."""
        self._known.pop(key, None)

    def forget_runs(self) -> None:
        """Read the runs again the next time: under the name of a deleted one another may have begun."""
        self._known = {key: found for key, found in self._known.items() if not key.startswith(RUNS)}

    def _of_run(self, run: str) -> set[str] | None:
        """None for an empty folder, or one whose run was killed before it began."""
        config = self._read(run, f"{run}/{CONFIG}")
        if config is not None:
            if not isinstance(config, dict) or not self._keys_in(config.get("data")):
                raise self._unknown(run, f"{CONFIG} names no data; {remedy_of(f'{run}/{CONFIG}')}")
            return self._keys_in(config) | self._keys_in(self._read(run, f"{run}/{EVALUATION}", ARTIFACTS))
        if is_held(self._store, run):
            raise UnknownNeeds(
                f"{self._store.path(run)} is starting and does not say yet what it reads, so nothing that it may read is "
                "removed; run this again in a minute",
                KINDS,
            )
        if any(self._store.exists(f"{run}/{name}") for name in (PLAN, LAST, f"{FINAL}/{MANIFEST}")):
            raise self._unknown(run, f"{CONFIG} is missing; {remedy_of(f'{run}/{CONFIG}')}")
        return None

    def _of_artifact(self, key: str) -> set[str] | None:
        try:
            manifest = read_manifest(self._store, key, artifact_kind(key))
        except ArtifactError as error:
            problem = f"{error}; {remedy_of(f'{key}/{MANIFEST}')}"
            raise self._unknown(key, problem, ["tokenizers", "decisions"]) from error
        return None if manifest is None else self._keys_in(manifest.details)

    def _of_evaluation(self, name: str) -> tuple[set[str], set[str]]:
        """The runs whose checkpoint was measured, and what it was measured on."""
        if name not in self._measured:
            key = f"{EVALUATIONS}/{name}"
            try:
                result = self._read(key, key, ARTIFACTS)
                if not isinstance(result, dict):
                    raise self._unknown(key, f"it is no evaluation; {remedy_of(key)}", ARTIFACTS)
            except UnknownNeeds as error:
                return set(), self._all_of(key, error)
            model = result.get("model") or result.get("checkpoint")
            runs = {named for named in self._keys_in(model) if named.startswith(RUNS)}
            self._measured[name] = runs, self._keys_in({**result, "checkpoint": None}) - runs
        return self._measured[name]

    def _keys_in(self, record: Any) -> set[str]:
        """Everything in a JSON value that looks like the key of a run or an artifact, or like a path that leads to one."""
        found = (key for text in _texts(record) for way in ways_to(self._store, text) for key in KEY.findall(way))
        return {key for key in found if is_plain_key(key)}

    def _read(self, whole: str, key: str, kinds: Iterable[str] = KINDS) -> Any:
        """A record of something, that names things of some kinds; None if there is none."""
        try:
            return read_sealed(self._store, key)
        except (ArtifactError, StorageError) as error:
            if isinstance(error, StorageError) and self._store.local is None:
                raise  # the store is away, and not this file alone
            problem = str(error) if isinstance(error, ArtifactError) else f"{error}; {remedy_of(key)}"
            raise self._unknown(whole, problem, kinds) from error

    def _unknown(self, key: str, problem: str, kinds: Iterable[str] = KINDS) -> UnknownNeeds:
        place = self._store.path(key)
        return UnknownNeeds(f"what {place} needs is not known, so nothing that it may need is removed: {problem}", kinds)


def artifact_kind(key: str) -> str:
    """The kind of the artifact that a run is made from, by its key."""
    return ARTIFACTS[key.split("/")[0]]


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
    begins = (re.match(rf"{RUNS}[\w.-]+", way) for way in ways_to(store, place))
    found = [match[0] for match in begins if match and is_plain_key(match[0])]
    return found[-1] if found else None


def _texts(record: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(record, str):
        yield record
    elif isinstance(record, dict):
        yield from record
        for value in record.values():
            yield from _texts(value)
    elif isinstance(record, list):
        for value in record:
            yield from _texts(value)
