"""Steps: descriptions of how artifacts of data and predictions are built, and how they are found or built.

A step's name is a fingerprint of its recipe and the contents of its inputs, so an input rebuilt with the same content
invalidates nothing. The manifest records the recipe and inputs of the step: see `Manifest`.

Pipelines and worker processes refer to a step by its name in `STEPS` and arguments. A step's module is imported only
when the step is used.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import ConfigDict, validate_call

from trainer.common.display import some
from trainer.common.errors import ArtifactError
from trainer.common.progress import Progress, silent
from trainer.config.kinds import load
from trainer.records.lease import hold_reused
from trainer.records.run_names import FOLDERS
from trainer.store.artifact_files import Depth, find_damage, is_intact
from trainer.store.details import require_details
from trainer.store.manifest import (
    MANIFEST,
    ArtifactRef,
    FileRecord,
    Input,
    Manifest,
    digest_folder,
    make_manifest,
    name_of,
    put_published,
    read_manifest,
    recall_manifest,
    unseal,
)
from trainer.store.names import CONFIG
from trainer.store.storage import Store

log = logging.getLogger(__name__)

CONTENTS = "contents"
"""The part of a recipe with digests of raw files, functions and other content; it is not displayed like settings."""

Sources = Mapping[str, Any]
"""The contents of an artifact's raw files, by name."""


def nothing(*_: Any) -> None:
    """Do nothing."""


class Parts(NamedTuple):
    """Whether an artifact was partly built, and the finished and remaining work in words."""

    begun: bool = False
    work: str = ""


class Explains(NamedTuple):
    """Functions that explain the state of a step, for dry runs and `headrace explain`."""

    sources: Callable[[], Sources] = dict
    """Returns the current raw files."""
    recall_sources: Callable[[str, Manifest], Sources] = lambda key, manifest: {}
    """Returns the raw files that an existing artifact was built from, to find which files differ."""
    by_content: bool = False
    """Whether raw files of equal content count as equal even if their names differ."""
    parts: Callable[[], Parts] = Parts
    """Returns the finished parts of an unpublished artifact."""
    remarks: Callable[[Manifest], list[str]] = lambda manifest: []
    """Returns remarks on an artifact that is reused."""


def made_elsewhere(step: "Step") -> Manifest:
    """The default `build`, for artifacts that all ranks build together: it must not be called."""
    raise AssertionError(f"{step.key} is not built by one process")


@dataclass(frozen=True)
class Step:
    """How one artifact, `folder`/`name`-FINGERPRINT, is built.

    `recipe` contains all settings that the artifact's bytes depend on, by their paths in a configuration, as JSON;
    `inputs` are its inputs by role. Entries listed in `recorded_only` are recorded but are not part of the fingerprint.
    """

    store: Store
    kind: str
    folder: str
    name: str
    recipe: Mapping[str, Any]
    build: Callable[["Step"], Manifest] = made_elsewhere
    """Builds and publishes the artifact; may continue a partly built one. Not set if all ranks build it together."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    recorded_only: frozenset[str] = frozenset()
    identity: str | None = None
    """The fingerprint in the names of runs that read this artifact, if it covers only part of it: of an encoded set,
    everything but its test split."""
    accept: Callable[[Manifest], None] = nothing
    """Called with the manifest of an existing artifact. Raises an error if it must not be used, for example because of
    too many bad records."""
    depth: Depth = "all"
    """How deeply its files are checked before reuse."""
    fixes_content: bool = True
    """Whether the name determines the content. A tokenizer's does not: it stays the same while its training text grows.
    """
    remedy: str = "delete the folder, and train again what was trained on it"
    """The remedy if it cannot be rebuilt identically and no copy exists."""
    in_place: bool = False
    """Whether `build` writes files to their final paths; the manifest of a damaged artifact is then deleted first."""
    passed: Callable[[], None] = nothing
    """Called when its files were checked to that depth and are intact."""
    explains: Explains = field(default_factory=Explains)
    release: Callable[[], None] = nothing
    """Stops work that was started early for building it."""

    @cached_property
    def fingerprint(self) -> str:
        return name_of(self.recipe, self.inputs, self.recorded_only)

    @property
    def key(self) -> str:
        return f"{self.folder}/{self.name}-{self.fingerprint}"

    @cached_property
    def expected(self) -> "Expected | None":
        """The content that a rebuild must reproduce because it existed before; None if nothing is recorded.

        Raises `ArtifactError` if other artifacts were built from it but its content is not recorded.
        """
        former = _former(self)
        if self.fixes_content:
            return Expected(former.content, []) if former else None
        found = dependents_of(self.store, self.key) if self.folder in FOLDERS else {}
        if not found:
            return None
        contents = [former.content] if former else [content for content in found.values() if content]
        if not contents:
            raise ArtifactError(
                f"{self.store.path(self.key)} is damaged or lost, and no readable record of its content exists"
                f"{_needed_by(list(found))}. Restore a copy of its files, or {self.remedy}"
            )
        return Expected(contents[0], list(found))

    def refer(self, manifest: Manifest | None, reused: bool = False) -> ArtifactRef:
        """Return a reference to pass to other steps; without a manifest, to an artifact that is not built yet."""
        size, content = (manifest.size(), manifest.content) if manifest else (0, "")
        name = self.identity or self.fingerprint
        return ArtifactRef(key=self.key, fingerprint=name, size=size, content=content, reused=reused)


def find_artifact(step: Step) -> ArtifactRef | None:
    """Return a step's artifact if it is published and intact; it is held until a run refers to it.

    A damaged artifact is logged as a warning and treated as missing. Errors of `accept` are raised.
    """
    manifest = recall_manifest(step.store, step.key, step.kind)
    if manifest is None:
        return None
    if not is_intact(step.store, step.key, manifest, step.depth):
        if step.in_place:
            step.store.delete(f"{step.key}/{MANIFEST}")
        return None
    step.passed()
    return _accepted(step, manifest)


def find_published(step: Step) -> ArtifactRef | None:
    """Like `find_artifact`, but does not check files: for callers that run before the stage that builds it."""
    manifest = recall_manifest(step.store, step.key, step.kind)
    return None if manifest is None else _accepted(step, manifest)


def make(step: Step) -> ArtifactRef:
    """Find a step's artifact, or build and publish it. Errors of `accept` and `build` are raised."""
    try:
        if found := find_artifact(step):
            return found
        step.store.sweep()
        return step.refer(step.build(step))
    finally:
        step.release()


def describe(step: Step, files: Iterable[FileRecord], details: dict[str, Any], notes: Iterable[str] = ()) -> Manifest:
    """Create the manifest of a step's artifact; `notes` are files about how it was built, not part of its content."""
    require_details(step.kind, details, step.recipe)
    manifest = make_manifest(step.kind, step.fingerprint, files, details)
    made_of = {"recipe": dict(step.recipe), "inputs": dict(step.inputs)}
    return manifest.model_copy(update={**made_of, "told": sorted(step.recorded_only), "notes": sorted(notes)})


def publish(step: Step, folder: Path, details: dict[str, Any], notes: Iterable[str] = ()) -> Manifest:
    """Publish a staged folder as a step's artifact, unless another process has; a damaged one must be reproduced.

    Raises `ArtifactError` if the key had different content before, because other artifacts may depend on it.
    """
    manifest, former = describe(step, digest_folder(folder), details, notes), _former(step)
    if former is not None and not find_damage(step.store, step.key, former) and _is_held(step):
        return former  # may already be in use
    if (wanted := step.expected) is not None:
        if wanted.content != manifest.content:
            raise _refused(step, wanted, manifest, former)
        log.info("%s was rebuilt with the same content", step.store.path(step.key))
    if former is not None and former.digests() == manifest.digests():
        manifest = former
    put_published(step.store, folder, step.key, manifest)
    return manifest


class Expected(NamedTuple):
    """The content that a rebuild must reproduce, and the dependents."""

    content: str
    dependents: list[str]


def _former(step: Step) -> Manifest | None:
    with suppress(ArtifactError):
        return read_manifest(step.store, step.key, step.kind)
    return None


def _refused(step: Step, wanted: Expected, made: Manifest, former: Manifest | None) -> ArtifactError:
    place, digests = step.store.path(step.key), made.digests()
    other = (
        next((name for name, sha256 in former.digests().items() if digests.get(name) != sha256), "") if former else ""
    )
    return ArtifactError(
        f"{place} is damaged or lost, and rebuilding it gives other "
        f"content{f': {other} differs' if other else ''} (expected {wanted.content}, built {made.content}). The text, "
        "headrace or a library has changed, or an input changes each "
        f"time{_needed_by(wanted.dependents)}. Restore a copy of its files, or {step.remedy}"
    )


def _needed_by(dependents: list[str]) -> str:
    return f"; it is needed by {some(dependents)}" if dependents else ""


def dependents_of(store: Store, key: str) -> dict[str, str | None]:
    """The shard sets and runs built from an artifact, each with its recorded content; None if the record is damaged."""
    records = {f"shards/{name}": MANIFEST for name in store.names("shards")}
    records |= {f"runs/{name}": CONFIG for name in store.names("runs")}
    with ThreadPoolExecutor() as pool:
        read = pool.map(lambda folder: store.find_bytes(f"{folder}/{records[folder]}") or b"", records)
        content = dict(zip(records, read, strict=True))
    return {
        folder: _recorded(raw, f"{folder}/{records[folder]}", key)
        for folder, raw in content.items()
        if key.encode() in raw
    }


def _recorded(raw: bytes, place: str, key: str) -> str | None:
    """The content of an input recorded in a manifest or a run's config.json; None if the record is damaged."""
    try:
        record = unseal(json.loads(raw), place if place.endswith(CONFIG) else None)
        return next((each["content"] for each in record["inputs"].values() if each["key"] == key), None)
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
        return None


def _accepted(step: Step, manifest: Manifest) -> ArtifactRef | None:
    step.accept(manifest)
    return step.refer(manifest, reused=True) if _is_held(step) else None


def _is_held(step: Step) -> bool:
    """Hold an artifact against removal until a run refers to it; return whether it still exists."""
    return step.folder not in FOLDERS or hold_reused(step.store, step.key)


class Named(NamedTuple):
    """The function that returns a step, and the step's title as a template of the function's arguments.

    `needs` are the arguments whose artifacts must exist before the step's name is known. A function that can start work
    early takes the argument `early`.
    """

    module: str
    function: str
    title: str
    needs: tuple[str, ...] = ()
    early: bool = False
    made_by: str | None = None
    """The function, as `module.function`, that every rank calls if all ranks build the artifact together; else None."""


STEPS = {
    "curate": Named("trainer.curation.curate", "curate", "the decisions"),
    "tokenizer": Named("trainer.data.tokenizer_training", "make_tokenizer", "the tokenizer"),
    "tokenize": Named(
        "trainer.data.tokenization", "tokenize", "shards of {corpus}", ("decisions", "tokenizer"), early=True
    ),
    "encode": Named("trainer.kinds.kind", "encode", "encoded set {job.data.name}"),
    "reference": Named(
        "trainer.kinds.preference.kind", "reference_step", "reference of {job.data.name}", ("data",),
        made_by="trainer.kinds.preference.reference.make_reference",
    ),
}  # fmt: skip


class Do(Protocol):
    """Returns the artifact of a job's step, by name: builds it in this process or as a task, or only looks it up."""

    def __call__(self, name: str, job: Any, **made: Any) -> ArtifactRef: ...


def open_step(name: str, store: Store, progress: Progress, **arguments: Any) -> Step:
    """Create a step; arguments may be JSON and are validated by the function's annotations."""
    named = STEPS[name]
    step: Step = checked(f"{named.module}.{named.function}")(store=store, progress=progress, **arguments)
    return step


def checked(function: str) -> Callable[..., Any]:
    """Return a function by name, wrapped so that JSON-like arguments are validated by its annotations."""
    found: Callable[..., Any] = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(load(function))
    return found


def make_named(name: str, progress: Progress, job: Any, **made: Any) -> ArtifactRef:
    """Find or build the artifact of a step; arguments may be JSON, as passed to a worker process."""
    named = STEPS[name]
    if named.made_by is not None:
        ref: ArtifactRef = checked(named.made_by)(job=job, progress=progress, **made)
        return ref
    store = Store(job["store"] if isinstance(job, Mapping) else job.store)
    early = {"early": True} if named.early else {}
    return make(open_step(name, store, progress, job=job, **made, **early))


def look_for(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef | None:
    """Return the published artifact of a job's step, checked if `check`; None if it must be built."""
    step = open_step(name, Store(job.store), silent(), job=job, **made)
    try:
        return find_artifact(step) if check else find_published(step)
    finally:
        step.release()


class NotMade(Exception):
    """The artifact of a step does not exist."""


def only_look(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef:
    """Return the artifact of a step; raise `NotMade` if it must be built."""
    found = look_for(name, job, check, **made)
    if found is None:
        raise NotMade(name)
    return found


def here(progress: Progress) -> Do:
    """Build each step in this process."""
    return lambda name, job, **made: make_named(name, progress, job, **made)


def in_ranks(runtime: Any, progress: Progress) -> Do:
    """Build each step in ranks that all request it: on rank 0, or on all together."""

    def do(name: str, job: Any, **made: Any) -> ArtifactRef:
        if STEPS[name].made_by is not None:
            return make_named(name, progress, job, **made)
        ref: ArtifactRef = runtime.on_first(lambda: make_named(name, progress, job, **made))
        return ref

    return do
