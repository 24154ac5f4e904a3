"""Steps: how one artifact of data or predictions is made, and the one way in which it is found or made.

A step is named by its recipe and by the contents of what it is made from, so what was made again to the same content
changes nothing after it. What a manifest says of an artifact is what its step said: see `Manifest`.

What a pipeline asks for, and what a worker process is asked for, is the name of a step, of `STEPS`, and arguments. Each
module of theirs is imported only when its step is looked at.
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

from trainer.common.errors import ArtifactError
from trainer.common.progress import Progress, silent
from trainer.config.kinds import load
from trainer.records.lease import hold_reused
from trainer.records.run_names import FOLDERS
from trainer.store.details import require_details
from trainer.store.manifest import (
    MANIFEST,
    ArtifactRef,
    FileRecord,
    Input,
    Manifest,
    digest_folder,
    find_damage,
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
"""The part of a recipe that says by digests what raw files, functions and the like hold: not told as settings are."""

NAMED = 5
"""Dependents that an error names."""

Sources = Mapping[str, Any]
"""What an artifact's raw files hold, by their names."""


def nothing(*_: Any) -> None:
    """Nothing to do."""


class Parts(NamedTuple):
    """Whether the making of an artifact was begun, and how much of it there is and is to be made, in words."""

    begun: bool = False
    work: str = ""


class Explains(NamedTuple):
    """What is told of a step that is only looked at."""

    sources: Callable[[], Sources] = dict
    """The raw files as they are now."""
    recall_sources: Callable[[str, Manifest], Sources] = lambda key, manifest: {}
    """The same of another artifact of the kind, as it was made, to tell which files differ."""
    by_content: bool = False
    """Whether a raw file of another name and the same content is the same."""
    parts: Callable[[], Parts] = Parts
    """What is there of it, where it is not published."""
    remarks: Callable[[Manifest], list[str]] = lambda manifest: []
    """What is told of it where it is used again."""


def made_elsewhere(step: "Step") -> Manifest:
    """The default `build` of artifacts that all ranks make together: who starts the ranks makes them."""
    raise AssertionError(f"{step.key} is not made by one process")


@dataclass(frozen=True)
class Step:
    """How one artifact is made: `folder`/`name`-FINGERPRINT, of a kind.

    `recipe` are all settings that its bytes depend on, by their places in a configuration, as JSON; `inputs` what it is
    made from, by role. Those named in `told` are recorded, and are no part of its name.
    """

    store: Store
    kind: str
    folder: str
    name: str
    recipe: Mapping[str, Any]
    build: Callable[["Step"], Manifest] = made_elsewhere
    """Makes and publishes the artifact, and may continue a partly made one. Not set for artifacts that all ranks make
    together."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    identity: str | None = None
    """The fingerprint in the names of runs that read this artifact, if it covers only part of it: of an encoded set,
    everything but its test split."""
    place: str | None = None
    """Its key, if that is not made of folder, name and fingerprint: a run may have a name that a person gave it."""
    fits: Callable[[Manifest], bool] = lambda manifest: True
    """Whether what is found there is what this step makes, which a `place` does not say."""
    accept: Callable[[Manifest], None] = nothing
    """Called with the manifest of what is found. Raises what keeps it from being used, like too many bad records."""
    reads_all: bool = True
    """If true, looking for the artifact reads every file and verifies its content. If false, it compares sizes only,
    because each reader verifies the file that it opens.
    """
    anew: bool = True
    """If false, a file that this machine has compared, and that has not changed since, is not read again."""
    settles: bool = True
    """Whether the name determines the content. A tokenizer's does not: it stays the same while its training text grows.
    """
    otherwise: str = "delete the folder, and train again what was trained on it"
    """What to do where it cannot be made again as it was, and there is no copy."""
    in_place: bool = False
    """Whether `build` writes files to their place: a damaged one loses its manifest first, to be completed anew."""
    passed: Callable[[], None] = nothing
    """Called once all files were looked at as `reads_all` says, and are intact."""
    explains: Explains = field(default_factory=Explains)
    release: Callable[[], None] = nothing
    """Ends what was begun early for its making."""

    @cached_property
    def fingerprint(self) -> str:
        return name_of(self.recipe, self.inputs, self.told)

    @property
    def key(self) -> str:
        return self.place or f"{self.folder}/{self.name}-{self.fingerprint}"

    @cached_property
    def expected(self) -> "Expected | None":
        """What must come back under the key, because it was made before; None if nothing says so.

        Raises `ArtifactError` if something was made from it, and its content is not known.
        """
        former = _former(self)
        if self.settles:
            return Expected(former.content, []) if former else None
        found = dependents_of(self.store, self.key) if self.folder in FOLDERS else {}
        if not found:
            return None
        contents = [former.content] if former else [content for content in found.values() if content]
        if not contents:
            raise ArtifactError(
                f"{self.store.path(self.key)} is damaged or lost, and what it was is recorded nowhere that can be read"
                f"{_needed_by(list(found))}. Put back a copy of its files, or {self.otherwise}"
            )
        return Expected(contents[0], list(found))

    def refer(self, manifest: Manifest | None, reused: bool = False) -> ArtifactRef:
        """The reference to it by which other steps are given it; without a manifest, to one that is still to be
        made.
        """
        size, content = (manifest.size(), manifest.content) if manifest else (0, "")
        name = self.identity or self.fingerprint
        return ArtifactRef(key=self.key, fingerprint=name, size=size, content=content, reused=reused)


def find_artifact(step: Step) -> ArtifactRef | None:
    """The artifact of a step, if it is published and intact, held until a run says that it reads it.

    A damaged artifact is logged as a warning and treated as missing. Raises what its `accept` raises.
    """
    manifest = recall_manifest(step.store, step.key, step.kind)
    if manifest is None or not step.fits(manifest):
        return None
    damage = find_damage(step.store, step.key, manifest, content=step.reads_all, anew=step.anew)
    for file, problem in damage.items():
        log.warning("%s/%s %s: it is to be made anew", step.store.path(step.key), file, problem)
    if damage and step.in_place:
        step.store.delete(f"{step.key}/{MANIFEST}")
    if damage:
        return None
    step.passed()
    return _accepted(step, manifest)


def find_published(step: Step) -> ArtifactRef | None:
    """Like `find_artifact`, but does not check files: for callers that run before the stage that makes the artifact."""
    manifest = recall_manifest(step.store, step.key, step.kind)
    return None if manifest is None else _accepted(step, manifest)


def make(step: Step) -> ArtifactRef:
    """Find the artifact of a step, or make and publish it. Raises what its `accept` and `build` raise."""
    try:
        if found := find_artifact(step):
            return found
        step.store.sweep()
        return step.refer(step.build(step))
    finally:
        step.release()


def describe(step: Step, files: Iterable[FileRecord], details: dict[str, Any], notes: Iterable[str] = ()) -> Manifest:
    """The manifest of a step's artifact; `notes` are files that tell how it was made, and are no part of its
    content.
    """
    require_details(step.kind, details, step.recipe)
    manifest = make_manifest(step.kind, step.fingerprint, files, details)
    made_of = {"recipe": dict(step.recipe), "inputs": dict(step.inputs)}
    return manifest.model_copy(update={**made_of, "told": sorted(step.told), "notes": sorted(notes)})


def publish(step: Step, folder: Path, details: dict[str, Any], notes: Iterable[str] = ()) -> Manifest:
    """Publish a staged folder as the artifact of a step, unless another process has; what was damaged comes back as it
    was.

    Raises `ArtifactError` if its key held different content before, because other artifacts may have been made from
    that.
    """
    manifest, former = describe(step, digest_folder(folder), details, notes), _former(step)
    if former is not None and not find_damage(step.store, step.key, former) and _is_held(step):
        return former  # which may be in use already
    if (wanted := step.expected) is not None:
        if wanted.content != manifest.content:
            raise _refused(step, wanted, manifest, former)
        log.info("%s was made before: it has the same content", step.store.path(step.key))
    if former is not None and former.digests() == manifest.digests():
        manifest = former
    put_published(step.store, folder, step.key, manifest)
    return manifest


class Expected(NamedTuple):
    """What must come back under a key: its content, and what was made from it."""

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
        f"{place} is damaged or lost, and what is made today is not what was "
        f"there{f': {other} differs' if other else ''} (expected {wanted.content}, made {made.content}). The text, "
        "headrace or a library is another, or something that it is made of changes each "
        f"time{_needed_by(wanted.dependents)}. Put back a copy of its files, or {step.otherwise}"
    )


def _needed_by(dependents: list[str]) -> str:
    more = ", …" if len(dependents) > NAMED else ""
    return f"; it is needed by {', '.join(dependents[:NAMED])}{more}" if dependents else ""


def dependents_of(store: Store, key: str) -> dict[str, str | None]:
    """The shard sets and runs that were made from an artifact, with the content that they record; None if that is
    damaged.
    """
    records = {f"shards/{name}": MANIFEST for name in store.names("shards")}
    records |= {f"runs/{name}": CONFIG for name in store.names("runs")}
    with ThreadPoolExecutor() as pool:
        read = pool.map(lambda folder: store.find_bytes(f"{folder}/{records[folder]}") or b"", records)
        said = dict(zip(records, read, strict=True))
    return {
        folder: _recorded(raw, f"{folder}/{records[folder]}", key)
        for folder, raw in said.items()
        if key.encode() in raw
    }


def _recorded(raw: bytes, place: str, key: str) -> str | None:
    """The content of an input that a manifest or a run's config.json tells; None if that is damaged."""
    try:
        said = unseal(json.loads(raw), place if place.endswith(CONFIG) else None)
        return next((each["content"] for each in said["inputs"].values() if each["key"] == key), None)
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
        return None


def _accepted(step: Step, manifest: Manifest) -> ArtifactRef | None:
    step.accept(manifest)
    return step.refer(manifest, reused=True) if _is_held(step) else None


def _is_held(step: Step) -> bool:
    """Hold what may be removed until a run says that it reads it; returns whether it is still there."""
    return step.folder not in FOLDERS or hold_reused(step.store, step.key)


class Named(NamedTuple):
    """Where the function is that returns a step, and what the step is called, given the job and what it is made from.

    `needs` are the arguments whose artifacts must be there before the step can be named. A step that can begin
    something early takes `early`.
    """

    module: str
    function: str
    title: str
    needs: tuple[str, ...] = ()
    early: bool = False
    made_by: str | None = None
    """The function, as `module.function`, that finds or makes the artifact where all ranks make it together: each of
    them calls it. None where one process makes it."""


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
    """Asks for the artifact of a step of a job, by the step's name: makes it here or as a task, or only looks."""

    def __call__(self, name: str, job: Any, **made: Any) -> ArtifactRef: ...


def open_step(name: str, store: Store, progress: Progress, **arguments: Any) -> Step:
    """A step, of its arguments as they are or as JSON: they are validated by the function's own annotations."""
    named = STEPS[name]
    step: Step = checked(f"{named.module}.{named.function}")(store=store, progress=progress, **arguments)
    return step


def checked(function: str) -> Callable[..., Any]:
    """A function by its name, which takes JSON-like values and validates them by its own annotations."""
    found: Callable[..., Any] = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(load(function))
    return found


def make_named(name: str, progress: Progress, job: Any, **made: Any) -> ArtifactRef:
    """Find or make the artifact of a step, of arguments as they are, or as a worker process is given them."""
    named = STEPS[name]
    if named.made_by is not None:
        ref: ArtifactRef = checked(named.made_by)(job=job, progress=progress, **made)
        return ref
    store = Store(job["store"] if isinstance(job, Mapping) else job.store)
    early = {"early": True} if named.early else {}
    return make(open_step(name, store, progress, job=job, **made, **early))


def look_for(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef | None:
    """The published artifact of a step of a job, and intact if that is to be checked; None if it is to be made."""
    step = open_step(name, Store(job.store), silent(), job=job, **made)
    try:
        return find_artifact(step) if check else find_published(step)
    finally:
        step.release()


class NotMade(Exception):
    """What a step makes is not there."""


def only_look(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef:
    """Makes nothing: raises `NotMade` where the artifact of a step is to be made."""
    found = look_for(name, job, check, **made)
    if found is None:
        raise NotMade(name)
    return found


def here(progress: Progress) -> Do:
    """Makes each step in this process."""
    return lambda name, job, **made: make_named(name, progress, job, **made)


def in_ranks(runtime: Any, progress: Progress) -> Do:
    """Makes each step in ranks that all ask for it: on the first one, or by all of them together."""

    def do(name: str, job: Any, **made: Any) -> ArtifactRef:
        if STEPS[name].made_by is not None:
            return make_named(name, progress, job, **made)
        ref: ArtifactRef = runtime.on_first(lambda: make_named(name, progress, job, **made))
        return ref

    return do
