"""References between artifacts and runs, as recorded in the store, and pins, which garbage collection keeps.

runs/X/config.json            `inputs`: its tokenizer, shards or encoded set, and the runs that it started from
runs/X/eval.json              the data that the model was measured on
shards/X/manifest.json …      `inputs`: its tokenizer, and the decisions about its text
evaluations/X.json            the data that a checkpoint was measured on, which is kept as long as its run
pins/runs/X  pins/shards/X …  one small sealed file per pinned run or artifact, whose key is in the file's path
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from trainer.common.display import suggest_nearest
from trainer.common.errors import ArtifactError, ConfigError, RunError
from trainer.records.lease import HOLDS, LONGEST, is_being_removed, is_held
from trainer.records.run_names import FOLDERS, RUN_PREFIX, find_run_name, run_at
from trainer.records.sealed import read_sealed, sealed_bytes
from trainer.records.shapes import remedy_of
from trainer.store.details import DATA_KINDS
from trainer.store.manifest import MANIFEST, read_manifest
from trainer.store.names import CONFIG, EVALUATION, FINAL, LAST, PLAN, is_plain_key
from trainer.store.storage import Store
from trainer.training.identity import SHARDS_OF

ARTIFACTS = {each.folder: kind for kind, each in DATA_KINDS.items()}
"""Folders of the artifacts that runs use as inputs, with their kinds."""

EVALUATIONS = "evaluations"


class References:
    """References read from a store's records. Those of artifacts and evaluations never change and are cached.

    Methods raise `RunError` if a record cannot be read, because then it is not known what may be removed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._artifacts: dict[str, set[str]] = {}
        self._evaluations: dict[str, tuple[str | None, set[str]]] = {}

    def of(self, key: str) -> set[str] | None:
        """The keys that a run or an artifact references; None if it does not exist."""
        if key.startswith(RUN_PREFIX):
            return self._of_run(key)
        if key not in self._artifacts:
            try:
                manifest = read_manifest(self._store, key, artifact_kind(key))
            except ArtifactError as error:
                raise self._unknown(key, f"{error}; {remedy_of(f'{key}/{MANIFEST}')}") from error
            if manifest is None:
                return None
            self._artifacts[key] = {each.key for each in manifest.inputs.values()}
        return self._artifacts[key]

    def reached(self, roots: Iterable[str]) -> set[str]:
        """The roots and everything they reference, directly or indirectly; runs are read again on each call."""
        measured: dict[str | None, set[str]] = defaultdict(set)
        for name in self._store.names(EVALUATIONS):
            run, read = self._of_evaluation(name)
            measured[run] |= read
        waiting = {*roots, *measured[None]}
        runs = [key for key in waiting if key.startswith(RUN_PREFIX)]
        with ThreadPoolExecutor() as pool:
            known = dict(zip(runs, pool.map(self.of, runs), strict=True))
        found: set[str] = set()
        while waiting:
            key = waiting.pop()
            found.add(key)
            needs = known[key] if key in known else self.of(key)
            if needs is not None:  # a run whose folder is empty was not measured on anything
                waiting |= (needs | measured[key]) - found
        return found

    def _of_run(self, run: str) -> set[str] | None:
        """A run's references; None for an empty folder, or a run that was killed before it started."""
        config = self._read(run, f"{run}/{CONFIG}")
        if config is not None:
            if not config.get("inputs"):
                raise self._unknown(run, f"{CONFIG} lists no inputs; {remedy_of(f'{run}/{CONFIG}')}")
            measured_on = _measured_on(self._read(run, f"{run}/{EVALUATION}"))
            return {each["key"] for each in config["inputs"].values()} | measured_on
        if is_held(self._store, run):
            raise RunError(
                f"{self._store.path(run)} is starting and has not recorded its inputs yet, so nothing is removed; run "
                "this again in a minute"
            )
        if any(self._store.exists(f"{run}/{name}") for name in (PLAN, LAST, f"{FINAL}/{MANIFEST}")):
            raise self._unknown(run, f"{CONFIG} is missing; {remedy_of(f'{run}/{CONFIG}')}")
        return None

    def _of_evaluation(self, name: str) -> tuple[str | None, set[str]]:
        """The run whose checkpoint was measured, if it is in the store, and the keys of the data."""
        if name not in self._evaluations:
            key = f"{EVALUATIONS}/{name}"
            result = self._read(key, key) or {}  # it may have been deleted since the listing
            self._evaluations[name] = (
                run_at(self._store, result.get("model") or result.get("checkpoint") or ""), _measured_on(result),
            )  # fmt: skip
        return self._evaluations[name]

    def _read(self, whole: str, key: str) -> dict[str, Any] | None:
        try:
            return read_sealed(self._store, key)
        except ArtifactError as error:
            raise self._unknown(whole, str(error)) from error

    def _unknown(self, key: str, problem: str) -> RunError:
        return RunError(f"the inputs of {self._store.path(key)} are not known, so nothing is removed: {problem}")


def artifacts_of(config: Mapping[str, Any]) -> list[str]:
    """The keys of the artifacts that a run was trained on, from its config.json; shards last, in order of corpora."""
    shards = [ref["key"] for ref in config["data"].get("shards", ())]
    roles = {kind.role for kind in DATA_KINDS.values()}
    named = {each["key"] for role, each in config["inputs"].items() if role in roles or role.startswith(SHARDS_OF)}
    return [*sorted(named.difference(shards)), *(key for key in shards if key in named)]


def artifact_kind(key: str) -> str:
    """The kind of an input artifact, from its key."""
    return ARTIFACTS[key.split("/")[0]]


def _measured_on(evaluation: dict[str, Any] | None) -> set[str]:
    """The keys of the data that a model was measured on, and of the decisions that kept it out of the training text."""
    measured = evaluation or {}
    return {*measured.get("data", ()), *(measured.get("clean_of") or {}).get("decisions", ())}


PINS = "pins"


def pinned(store: Store) -> set[str]:
    """The keys of all pinned runs and artifacts, from the pins' paths."""
    return {f"{kind}/{name}" for kind in FOLDERS for name in store.names(f"{PINS}/{kind}")}


def require_intact_pins(store: Store, remove: bool) -> None:
    """Raise `RunError` for damaged pins and holds, because it is not known what they keep.

    Damaged holds that are older than any hold can last are ignored, and deleted if `remove` is set.
    """
    ended, problems, before = list[str](), list[str](), datetime.now(UTC) - LONGEST - timedelta(days=1)
    for file in store.walk(PINS):
        try:
            read_sealed(store, file.key)
        except ArtifactError as error:
            if file.key.startswith(f"{HOLDS}/") and file.modified < before:
                ended.append(file.key)
            else:
                problems.append(str(error))
    if problems:
        listed = "; ".join(sorted(problems))
        raise RunError(f"{listed}; until then nothing is removed, because it is not known what they keep")
    for key in ended if remove else []:
        store.delete(key)


def pin(store: Store, name: str) -> str:
    """Pin a run by its name, its job's name or its key, or an artifact by key; returns the key.

    Raises `ConfigError` for an invalid key, `ArtifactError` if there is nothing to pin.
    """
    key = _key_of(name if "/" in name else find_run_name(store, name, exact=True))
    content = {"since": datetime.now(UTC).isoformat(timespec="seconds")}
    made = store.create(f"{PINS}/{key}", sealed_bytes(f"{PINS}/{key}", content))
    # Checked after the pin is written: a removal is marked before it reads the pins.
    removing = is_being_removed(store, key)
    if removing or not store.exists(f"{key}/{CONFIG if key.startswith(RUN_PREFIX) else MANIFEST}"):
        if made:
            store.delete(f"{PINS}/{key}")
        problem = "was removed, or is being removed" if removing else "does not exist"
        kind, _, named = key.partition("/")
        hint = suggest_nearest(named, sorted({*store.names(kind)} - {named}))
        raise ArtifactError(f"cannot pin {store.path(key)}: it {problem}; {hint}")
    return key


def unpin(store: Store, name: str) -> str:
    """Remove a pin and return its key; raises `ConfigError` if there is none."""
    found, key = sorted(pinned(store)), _key_of(name)
    if key not in found and "/" not in name:
        with suppress(RunError):  # the run may be missing while its pin exists
            key = _key_of(find_run_name(store, name, exact=True))
    if key not in found:
        raise ConfigError(f"{key} is not pinned; {suggest_nearest(key, found)}")
    store.delete(f"{PINS}/{key}")
    return key


def _key_of(name: str) -> str:
    key = name if "/" in name else f"{RUN_PREFIX}{name}"
    if not re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w.-]+", key) or not is_plain_key(key):
        raise ConfigError(
            f"{name!r} cannot be pinned: expected a run's name, or a key such as shards/code-0123456789abcdef"
        )
    return key
