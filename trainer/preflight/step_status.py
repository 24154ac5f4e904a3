"""Whether what a step makes is there, and else what differs from the most similar artifact or run that there is."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from trainer.common.errors import ArtifactError, PipelineError
from trainer.common.formats import count
from trainer.data.sources import PIECE_BYTES
from trainer.records.fields import names_in, tell_changes
from trainer.records.lease import is_held
from trainer.records.sealed import read_sealed, require_sealed
from trainer.records.steps import CONTENTS, Sources, Step
from trainer.store.manifest import MANIFEST, Manifest, find_damage, parse_manifest, read_manifest
from trainer.store.names import CONFIG, PLAN
from trainer.store.storage import Store
from trainer.training.identity import Run, final_manifest
from trainer.training.pointer_repair import committed_steps

log = logging.getLogger(__name__)

Recorded = TypeVar("Recorded")


Verdict = Literal["reused", "made", "continued", "depends", "refused", "left out"]


class StepStatus(NamedTuple):
    """A stage, what becomes of it and why; `work` says how much there is to do, `created` when what is reused was
    made.
    """

    stage: str
    verdict: Verdict
    key: str | None = None
    reasons: tuple[str, ...] = ()
    work: str = ""
    created: str = ""

    @property
    def later(self) -> str:
        """Why a stage after this one cannot be told yet."""
        words = {"made": "which will be made", "continued": "which is not finished", "refused": "which is refused"}
        return f"depends on {self.stage}, {words.get(self.verdict, 'which is not there yet')}"


NONE_YET = "there is none yet"
UNRECORDED = "made with other options, which it does not record"
NAMED = 3
"""Files that are named of those that differ."""

CONSIDERED = 3
"""Artifacts of equally different options whose files are compared."""


class Likeness(NamedTuple):
    """An artifact, its manifest, and the settings and inputs that differ from those that are wanted."""

    key: str
    manifest: Manifest
    differing: list[str]


def look(store: Store, key: str, kind: str, content: bool = True) -> tuple[Manifest | None, list[str]]:
    """The manifest of an artifact that is there and intact; else None and what is wrong, or nothing if it is not
    there.
    """
    try:
        manifest = read_manifest(store, key, kind)
    except ArtifactError as error:
        return None, [str(error)]
    damage = find_damage(store, key, manifest, content=content) if manifest else {}
    if damage:
        return None, [f"{file} {problem}" for file, problem in damage.items()]
    return manifest, []


def status(step: Step, title: str) -> tuple[StepStatus, Manifest | None]:
    """Whether the artifact of a step is there and can be used again, with its manifest, or would be made, and why."""
    manifest, problems = look(step.store, step.key, step.kind, content=step.reads_all)
    if manifest is not None:
        try:
            step.accept(manifest)
        except PipelineError as error:
            return StepStatus(title, "refused", step.key, (str(error),)), None
        return StepStatus(
            title, "reused", step.key, tuple(step.explains.remarks(manifest)), created=manifest.created
        ), manifest
    parts = step.explains.parts()
    if not problems and parts.begun:
        problems = ["it was begun and not finished"]
    return StepStatus(title, "made", step.key, tuple(problems or why(step)), parts.work), None


def why(step: Step) -> list[str]:
    """What differs from the most similar artifact of the step's name: settings, inputs, raw files."""
    similar = _find_similar(step)
    closest = [each for each in similar if len(each.differing) == len(similar[0].differing)][:CONSIDERED]
    if not closest:
        return [NONE_YET]
    now = step.explains.sources()
    files = [_compare_sources(step, each, now) for each in closest]
    best = min(range(len(closest)), key=lambda place: len(files[place]))
    told = [*closest[best].differing, *describe_files(files[best])]
    return told or _compare_inputs(step, closest[best].manifest, step.told) or [f"{closest[best].key} was {UNRECORDED}"]


def _find_similar(step: Step) -> list[Likeness]:
    """The artifacts of the same name, those with the least that differs first, and of these the newest."""
    store, pattern = step.store, re.compile(re.escape(f"{step.name}-") + r"[0-9a-f]{16}")
    found = []
    for other in (f"{step.folder}/{each}" for each in store.names(step.folder) if pattern.fullmatch(each)):
        with suppress(ArtifactError):
            manifest = read_manifest(store, other, step.kind)
            if manifest is not None and other != step.key:
                differing = [
                    *compare_options(manifest.recipe, step.recipe),
                    *_compare_inputs(step, manifest, step.inputs.keys() - step.told),
                ]
                found.append(Likeness(other, manifest, differing))
    newest_first = sorted(found, key=lambda each: each.manifest.created, reverse=True)
    return sorted(newest_first, key=lambda each: len(each.differing))


def _compare_inputs(step: Step, other: Manifest, roles: Iterable[str]) -> list[str]:
    """The inputs of some roles that are others now, each with what differs in how they were made."""
    found = []
    for role in sorted(step.inputs.keys() & set(roles)):
        before, now = other.inputs.get(role), step.inputs[role]
        if before is None or before.content == now.content:
            continue
        recipes = [_recipe_of(step.store, each.key) for each in (before, now)]
        reasons = ["it was made anew"] if before.key == now.key else compare_options(*recipes)
        because = f" ({'; '.join(reasons)})" if reasons else ""
        found.append(f"the {role}: {before.key} -> {now.key}{because}")
    return found


def _recipe_of(store: Store, key: str) -> dict[str, Any]:
    """The recipe of what something was made from; nothing if that is gone or damaged."""
    try:
        return parse_manifest(store.read_bytes(f"{key}/{MANIFEST}")).recipe
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def _compare_sources(step: Step, other: Likeness, now: Sources) -> list[str]:
    """Raw files that differ; of files that were cut by another rule, which alone changes none, those that differ
    besides.
    """
    before = step.explains.recall_sources(other.key, other.manifest)
    if step.explains.by_content:
        same = set(before.values()) & set(now.values())
        before, now = ({name: held for name, held in each.items() if held not in same} for each in (before, now))
    if other.manifest.recipe.get(PIECE_BYTES) != step.recipe.get(PIECE_BYTES):
        before = {name: _despite_cuts(held, now.get(name)) for name, held in before.items()}
    return compare_files(before, now)


def compare_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ in two recipes, as `data.shards.num_shards: 2 -> 3`; digests of contents are left
    out.
    """
    settings = [{key: _by_name(value) for key, value in each.items() if key != CONTENTS} for each in (old, new)]
    return tell_changes(settings[0], settings[1])


def compare_files(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of files that differ, each after what became of it; `old` and `new` are digests by name."""
    changed = [f"changed {name}" for name in new if name in old and old[name] != new[name]]
    return (
        changed
        + [f"added {name}" for name in new if name not in old]
        + [f"removed {name}" for name in old if name not in new]
    )


def _despite_cuts(old: Any, new: Any) -> Any:
    """A file's pieces as they are now if all that is known to differ is where it is cut."""
    if not isinstance(old, list) or not isinstance(new, list):
        return old
    recut = [each[:2] for each in old] != [each[:2] for each in new] and old[-1][1] == new[-1][1]
    return new if recut else old


def describe_files(differing: Sequence[str]) -> list[str]:
    """Files that differ in one line, counted, the first few named; none if there are none."""
    parts = []
    for word in ("changed", "added", "removed"):
        names = [each.removeprefix(f"{word} ") for each in differing if each.startswith(f"{word} ")]
        more = f" and {count(len(names) - NAMED)} more" if len(names) > NAMED else ""
        if names:
            parts.append(f"{count(len(names))} {word} ({', '.join(names[:NAMED])}{more})")
    return [f"files: {', '.join(parts)}"] if parts else []


def _by_name(value: Any) -> Any:
    """Lists of what has names as mappings, so that what differs can be told by its path."""
    if names := names_in(value):
        parts = ({key: part for key, part in each.items() if key != "name"} for each in value)
        return dict(zip(names, parts, strict=True))
    return {key: _by_name(part) for key, part in value.items()} if isinstance(value, dict) else value


def intact(read: Callable[..., Recorded | None], *place: Any) -> Recorded | None:
    """What a record holds; None if there is none, or it is damaged, so that it says nothing of what was done before."""
    try:
        return read(*place)
    except ArtifactError as error:
        log.warning("%s", error)
        return None


def explain_new(store: Store, name: str, run: Run) -> list[str]:
    """What differs from the most similar run of a job's name, and which of those would be left behind unfinished."""
    pattern = re.compile(re.escape(name) + r"-[0-9a-f]{8}")
    keys = [f"runs/{each}" for each in store.names("runs") if pattern.fullmatch(each)]
    configs = {key: config for key in keys if (config := intact(read_sealed, store, f"{key}/{CONFIG}"))}
    if run.origin is not None:
        configs[run.origin] = require_sealed(store, f"{run.origin}/{CONFIG}")
    differences = {key: tell_changes(config["identity"], run.identity) for key, config in configs.items()}
    left = [line for key, different in differences.items() if (line := _tell_left(store, key, different))]
    if run.origin is not None:
        return [f"a fork of {run.origin}", *differences[run.origin], *left]
    return [*min(differences.values(), key=len, default=[NONE_YET]), *left]


def _tell_left(store: Store, key: str, different: list[str]) -> str | None:
    """That a run stays unfinished, where it stands, and why it is not continued; None of a finished one, and of one at
    work.
    """
    try:
        steps = committed_steps(store, key)
        if not steps or final_manifest(store, key) is not None or is_held(store, key):
            return None
    except ArtifactError as error:
        log.warning("%s", error)
        return None
    plan = intact(read_sealed, store, f"{key}/{PLAN}")
    planned = f" of {plan['total_steps']:,}" if plan else ""
    return f"leaves {key} behind unfinished, at step {steps[-1]:,}{planned}; it differs in {', '.join(different)}"
