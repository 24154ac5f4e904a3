"""What in a store is made from what, as records say.

runs/X/config.json            `inputs`: its tokenizer, shards or encoded set, and the runs that it began with
runs/X/eval.json              what the model was measured on
shards/X/manifest.json …      `inputs`: its tokenizer, and the decisions about its text
evaluations/X.json            what a checkpoint was measured on, which stays while the run does that it is of
"""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.data.decisions import KIND as DECISIONS
from trainer.data.labelled.encoded import KIND as ENCODED
from trainer.data.shards import KIND as SHARDS
from trainer.models.tokenizer import KIND as TOKENIZER
from trainer.records.lease import is_held
from trainer.records.names import FOLDERS, RUN_PREFIX, run_at
from trainer.records.sealed import read_sealed
from trainer.records.shapes import remedy_of
from trainer.store.manifest import MANIFEST, read_manifest
from trainer.store.names import (
    CONFIG,
    EVALUATION,
    FINAL,
    LAST,
    PLAN,
)
from trainer.store.storage import Store
from trainer.training.identity import SHARDS_OF, TRAINED_ON

log = logging.getLogger(__name__)


ARTIFACTS = {"encoded": ENCODED, "shards": SHARDS, "tokenizers": TOKENIZER, "decisions": DECISIONS}
"""Folders of artifacts that runs are made from, with the kind of those."""

EVALUATIONS = "evaluations"


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
            found = self._of_run(key) if key.startswith(RUN_PREFIX) else self._of_artifact(key)
            if found is None:
                return set()
            self._known[key] = found - {key}
        return self._known[key]

    def reached(self, roots: Iterable[str]) -> set[str]:
        """The roots, and all that they are made from, directly or not, or may be."""
        evaluations = [self._of_evaluation(name) for name in self._store.names(EVALUATIONS)]
        waiting = {*roots, *(key for runs, read in evaluations if not runs for key in read)}
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.needs_of, [key for key in waiting if key.startswith(RUN_PREFIX)]))
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
        self._known = {key: found for key, found in self._known.items() if not key.startswith(RUN_PREFIX)}

    def _of_run(self, run: str) -> set[str] | None:
        """None for an empty folder, or one whose run was killed before it began."""
        config = self._read(run, f"{run}/{CONFIG}")
        if config is not None:
            if not config.get("inputs"):
                raise self._unknown(run, f"{CONFIG} names no data; {remedy_of(f'{run}/{CONFIG}')}")
            measured_on = _measured_on(self._read(run, f"{run}/{EVALUATION}", ARTIFACTS))
            return {each["key"] for each in config["inputs"].values()} | measured_on
        if is_held(self._store, run):
            raise UnknownNeeds(
                f"{self._store.path(run)} is starting and does not say yet what it reads, so nothing that it may read "
                "is removed; run this again in a minute",
                FOLDERS,
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
        return None if manifest is None else {each.key for each in manifest.inputs.values()}

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
            run = run_at(self._store, result.get("model") or result.get("checkpoint") or "")
            self._measured[name] = {run} if run else set(), _measured_on(result)
        return self._measured[name]

    def _read(self, whole: str, key: str, kinds: Iterable[str] = FOLDERS) -> Any:
        """A record of something, that names things of some kinds; None if there is none."""
        try:
            return read_sealed(self._store, key)
        except (ArtifactError, StorageError) as error:
            if isinstance(error, StorageError) and self._store.local is None:
                raise  # the store is away, and not this file alone
            problem = str(error) if isinstance(error, ArtifactError) else f"{error}; {remedy_of(key)}"
            raise self._unknown(whole, problem, kinds) from error

    def _unknown(self, key: str, problem: str, kinds: Iterable[str] = FOLDERS) -> UnknownNeeds:
        place = self._store.path(key)
        return UnknownNeeds(
            f"what {place} needs is not known, so nothing that it may need is removed: {problem}", kinds
        )


def artifacts_of(config: Mapping[str, Any]) -> list[str]:
    """The keys of the artifacts that a run was trained on, of its config.json: shards last, in the order of the
    corpora.
    """
    shards = [ref["key"] for ref in config["data"].get("shards", ())]
    named = {each["key"] for role, each in config["inputs"].items() if role in TRAINED_ON or role.startswith(SHARDS_OF)}
    return [*sorted(named.difference(shards)), *(key for key in shards if key in named)]


def artifact_kind(key: str) -> str:
    """The kind of the artifact that a run is made from, by its key."""
    return ARTIFACTS[key.split("/")[0]]


def _measured_on(evaluation: dict[str, Any] | None) -> set[str]:
    """The artifacts that a model was measured on, and the decisions that kept them out of its text."""
    said = evaluation or {}
    named = [*said.get("shards", ()), said.get("encoded"), *(said.get("clean_of") or {}).get("decisions", ())]
    return {key for key in named if key}
