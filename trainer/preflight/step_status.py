"""Status of steps, and of a job's training run, evaluation, lm-eval results and report: whether the result exists, and
if not, how it differs from the most similar existing one.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from trainer.common.errors import ArtifactError, PipelineError, RunError
from trainer.config.runs import RunJob
from trainer.data.sources import PIECE_BYTES
from trainer.evaluation.measurement import Measurement, find_result, read_result
from trainer.records.basis import FileChanges, find_changes
from trainer.records.evaluations import Result
from trainer.records.fields import list_changes, names_in
from trainer.records.lease import is_held
from trainer.records.plans import read_plan
from trainer.records.sealed import read_sealed, require_sealed
from trainer.records.steps import CONTENTS, Sources, Step
from trainer.registry.facts import read_facts
from trainer.registry.report import find_fault
from trainer.store.artifact_files import Depth, find_damage
from trainer.store.manifest import MANIFEST, Manifest, fingerprinted, parse_manifest, read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, EVALUATION, FINAL, FINAL_KIND, HARNESS, PLAN
from trainer.store.storage import Store
from trainer.training.checkpoint import committed_steps, look_for_checkpoint
from trainer.training.identity import (
    Run,
    TrainingData,
    final_form,
    final_manifest,
    finished_run,
    with_untrained,
)
from trainer.training.run_repair import find_config_fault

log = logging.getLogger(__name__)


Recorded = TypeVar("Recorded")


Verdict = Literal["reused", "made", "continued", "depends", "refused", "left out"]


class StepStatus(NamedTuple):
    """A stage, what it would do and why; `work` is the remaining work, `created` the time of a reused result."""

    stage: str
    verdict: Verdict
    key: str | None = None
    reasons: tuple[str, ...] = ()
    work: str = ""
    created: str = ""

    @property
    def later(self) -> str:
        """Why the status of a later stage is not known yet."""
        words = {"made": "which will be made", "continued": "which is not finished", "refused": "which is refused"}
        return f"depends on {self.stage}, {words.get(self.verdict, 'which does not exist yet')}"


NONE_YET = "there is none yet"
UNRECORDED = "built with other options that it does not record"
CONSIDERED = 3
"""Maximum number of artifacts with equally many differing options whose files are compared."""


class Likeness(NamedTuple):
    """An artifact, its manifest, and the settings and inputs that differ from the requested ones."""

    key: str
    manifest: Manifest
    differing: list[str]


def look(store: Store, key: str, kind: str, depth: Depth = "all") -> tuple[Manifest | None, list[str]]:
    """The manifest of an artifact if it is intact, else None; and the problems, empty if the artifact is missing."""
    try:
        manifest = read_manifest(store, key, kind)
    except ArtifactError as error:
        return None, [str(error)]
    damage = find_damage(store, key, manifest, depth) if manifest else {}
    if damage:
        return None, [f"{file} {problem}" for file, problem in damage.items()]
    return manifest, []


def status(step: Step, title: str) -> tuple[StepStatus, Manifest | None]:
    """Whether a step's artifact can be reused (with its manifest), would be refused, or would be built, and why."""
    manifest, problems = look(step.store, step.key, step.kind, step.depth)
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
        problems = ["it was started and not finished"]
    return StepStatus(title, "made", step.key, tuple(problems or why(step)), parts.work), None


def why(step: Step) -> list[str]:
    """Differences from the most similar artifact with the step's name: settings, inputs, raw files."""
    similar = _find_similar(step)
    closest = [each for each in similar if len(each.differing) == len(similar[0].differing)][:CONSIDERED]
    if not closest:
        return [NONE_YET]
    now = step.explains.sources()
    compared = [(each, _compare_sources(step, each, now)) for each in closest]
    best, files = min(compared, key=lambda found: found[1].different)
    named = files.describe("changed", "added", "removed")
    differing = [*best.differing, *([f"files: {', '.join(named)}"] if named else [])]
    return differing or _compare_inputs(step, best.manifest, step.recorded_only) or [f"{best.key} was {UNRECORDED}"]


def _find_similar(step: Step) -> list[Likeness]:
    """The artifacts of the same name, sorted by the number of differences, then newest first."""
    store, found = step.store, []
    for other in (f"{step.folder}/{each}" for each in fingerprinted(store.names(step.folder), step.name)):
        with suppress(ArtifactError):
            manifest = read_manifest(store, other, step.kind)
            if manifest is not None and other != step.key:
                differing = [
                    *compare_options(manifest.recipe, step.recipe),
                    *_compare_inputs(step, manifest, step.inputs.keys() - step.recorded_only),
                ]
                found.append(Likeness(other, manifest, differing))
    newest_first = sorted(found, key=lambda each: each.manifest.created, reverse=True)
    return sorted(newest_first, key=lambda each: len(each.differing))


def _compare_inputs(step: Step, other: Manifest, roles: Iterable[str]) -> list[str]:
    """The inputs with these roles that have changed, each with the differences of their recipes."""
    found = []
    for role in sorted(step.inputs.keys() & set(roles)):
        before, now = other.inputs.get(role), step.inputs[role]
        if before is None or before.content == now.content:
            continue
        recipes = [_recipe_of(step.store, each.key) for each in (before, now)]
        reasons = ["it was rebuilt"] if before.key == now.key else compare_options(*recipes)
        because = f" ({'; '.join(reasons)})" if reasons else ""
        found.append(f"the {role}: {before.key} -> {now.key}{because}")
    return found


def _recipe_of(store: Store, key: str) -> dict[str, Any]:
    """The recipe of an input; empty if its manifest is missing or damaged."""
    try:
        return parse_manifest(store.read_bytes(f"{key}/{MANIFEST}")).recipe
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def _compare_sources(step: Step, other: Likeness, now: Sources) -> FileChanges:
    """The changes of the raw files that an artifact was built from."""
    before = step.explains.recall_sources(other.key, other.manifest)
    if step.explains.by_content:
        same = set(before.values()) & set(now.values())
        before, now = ({name: value for name, value in each.items() if value not in same} for each in (before, now))
    return find_changes(before, now, other.manifest.recipe.get(PIECE_BYTES) != step.recipe.get(PIECE_BYTES))


def compare_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ in two recipes, as `data.shards.num_shards: 2 -> 3`, without digests of contents."""
    settings = [{key: _by_name(value) for key, value in each.items() if key != CONTENTS} for each in (old, new)]
    return list_changes(settings[0], settings[1])


def _by_name(value: Any) -> Any:
    """Convert lists of named items to mappings, so that differences have paths."""
    if names := names_in(value):
        parts = ({key: part for key, part in each.items() if key != "name"} for each in value)
        return dict(zip(names, parts, strict=True))
    return {key: _by_name(part) for key, part in value.items()} if isinstance(value, dict) else value


def intact(read: Callable[..., Recorded | None], *place: Any) -> Recorded | None:
    """Read a record; return None if it is missing, or damaged (with a warning)."""
    try:
        return read(*place)
    except ArtifactError as error:
        log.warning("%s", error)
        return None


def explain_new(store: Store, name: str, run: Run) -> list[str]:
    """Differences from the most similar run with a job's name, and the runs that would be abandoned unfinished."""
    keys = [f"runs/{each}" for each in fingerprinted(store.names("runs"), name, 8)]
    configs = {key: config for key in keys if (config := intact(read_sealed, store, f"{key}/{CONFIG}"))}
    if run.origin is not None:
        configs[run.origin] = require_sealed(store, f"{run.origin}/{CONFIG}")
    differences = {key: list_changes(config["identity"], run.identity) for key, config in configs.items()}
    left = [line for key, different in differences.items() if (line := _abandoned(store, key, different))]
    if run.origin is not None:
        return [f"a fork of {run.origin}", *differences[run.origin], *left]
    return [*min(differences.values(), key=len, default=[NONE_YET]), *left]


def _abandoned(store: Store, key: str, different: list[str]) -> str | None:
    """A line about a run that would stay unfinished, and why; None if it is finished, running or has no checkpoint."""
    try:
        steps = committed_steps(store, key)
        if not steps or final_manifest(store, key) is not None or is_held(store, key):
            return None
    except ArtifactError as error:
        log.warning("%s", error)
        return None
    plan = intact(read_sealed, store, f"{key}/{PLAN}")
    planned = f" of {plan['total_steps']:,}" if plan else ""
    return f"abandons {key}, unfinished at step {steps[-1]:,}{planned}; it differs in {', '.join(different)}"


def explain_run(
    store: Store,
    job: RunJob,
    data: TrainingData | None,
    before: Sequence[StepStatus],
    identify: Callable[[Any, Any], Run],
) -> StepStatus:
    """Whether the run is finished, would continue, start or be refused. `data` is None while its name is unknown."""
    waits = [stage for stage in before if stage.verdict != "reused"]
    if data is None or any(stage.key is None or stage.verdict == "refused" for stage in before):
        return StepStatus("training", "depends", reasons=(waits[0].later,))
    try:
        run = identify(job, data)
        fault = find_config_fault(store, run)
        config = read_sealed(store, f"{run.key}/{CONFIG}") if fault is None else None
    except (ArtifactError, RunError) as error:
        return StepStatus("training", "refused", reasons=(str(error),))
    work = "; ".join(stage.later for stage in waits)
    if config is not None and config["fingerprint"] != run.fingerprint:
        differences = list_changes(config["identity"], run.identity) or ["its format"]
        return StepStatus(
            "training", "refused", run.key, (f"{run.key} was trained with other settings", *differences), work
        )
    if fault is None and finished_run(store, run) is not None:
        manifest = final_manifest(store, run.key)
        return StepStatus("training", "reused", run.key, created=manifest.created if manifest else "")
    if is_held(store, run.key):
        return StepStatus("training", "refused", run.key, ("another process is writing to it",), work)
    if run.origin is not None and config is None and look_for_checkpoint(store, run.origin)[0] is None:
        return StepStatus("training", "refused", run.key, (f"{run.origin} has no checkpoint to fork from",), work)
    if config is None and fault is None:
        return StepStatus("training", "made", run.key, tuple(explain_new(store, job.name, run)), work)
    return _continue(store, run, work, fault)


def explain_report(
    store: Store,
    job: RunJob,
    data: TrainingData,
    before: Sequence[StepStatus],
    run: StepStatus,
    measured: Sequence[StepStatus],
    identify: Callable[[Any, Any], Run],
) -> StepStatus:
    """Whether the report exists for the same run, data, evaluations, and settings that do not affect training."""
    own = {f"{run.key}/{name}" for name in (EVALUATION, HARNESS)}
    unsettled = [stage for stage in (*before, run) if stage.verdict != "reused"]
    for stage in measured:
        if stage.verdict == "depends" or (stage.verdict == "made" and stage.key in own):
            unsettled.append(stage)
    if unsettled or run.key is None:
        return StepStatus("report", "depends", reasons=(unsettled[-1].later,))
    key = f"{run.key}/report.html"
    try:
        config = require_sealed(store, f"{run.key}/{CONFIG}")
        noted = with_untrained(config, identify(job, data), job, data)
        if noted != config:
            changes = list_changes(config["job"], noted["job"]) or list_changes(config, noted)
            return StepStatus("report", "made", key, tuple(changes))
        fault = find_fault(store, read_facts(store, run.key))
    except (ArtifactError, RunError) as error:
        return StepStatus("report", "refused", reasons=(str(error),))
    return StepStatus("report", "made", key, (fault,)) if fault else StepStatus("report", "reused", key)


def _continue(store: Store, run: Run, work: str, fault: str | None) -> StepStatus:
    """The step from which a run would continue, and the problems that would be repaired."""
    checkpoint, damaged = look_for_checkpoint(store, run.key, run.fingerprint)
    repaired = [f"rewritten: {fault}"] if fault else []
    final, faults = look(store, f"{run.key}/{FINAL}", FINAL_KIND)
    unfinished = [f"{FINAL}: {each}" for each in faults]
    if final is not None and final_form(final) != run.form:
        unfinished.append(f"model.lora.publish: {final_form(final)} -> {run.form}")
    problems = [*repaired, *damaged.values(), *unfinished]
    if checkpoint is None and damaged:
        return StepStatus("training", "refused", run.key, ("no checkpoint is intact", *problems), work)
    if checkpoint is None:
        return StepStatus("training", "made", run.key, ("it was started and has no checkpoint yet", *problems), work)
    manifest = read_manifest(store, f"{run.key}/{checkpoint}", CHECKPOINT_KIND)
    plan = intact(read_sealed, store, f"{run.key}/{PLAN}")
    step = manifest.details["step"] if manifest else 0
    planned = f" of {plan['total_steps']:,}" if plan else ""
    return StepStatus("training", "continued", run.key, (f"continues from step {step:,}{planned}", *problems), work)


def holds_out(store: Store, run: str) -> bool:
    """Whether the plan of a run has data to evaluate on; True if the plan is missing or damaged."""
    plan = intact(read_sealed, store, f"{run}/{PLAN}")  # a damaged plan is rewritten
    return plan is None or read_plan(plan).holds_out


def own_result(store: Store, run: str) -> Result | None:
    """The run's own evaluation, if it has a valid one."""
    return intact(read_result, store, run, intact(read_sealed, store, f"{run}/{CONFIG}") or {})


def explain_evaluation(
    store: Store, measurement: Measurement, before: Result | None, stage: str = "evaluation"
) -> StepStatus:
    """Whether a finished run's model was evaluated in the same way, else the differences from `before`."""
    if find_result(store, measurement) is not None:
        return StepStatus(stage, "reused", measurement.key)
    if before is None:
        return StepStatus(stage, "made", measurement.key, (NONE_YET,))
    if before.by == "split" and tuple(before.data) != measurement.data:
        change = f"{', '.join(before.data)} -> {', '.join(measurement.data)}"
        return StepStatus(stage, "made", measurement.key, (f"another test split: {change}",))
    changes = list_changes(before.recipe, measurement.whole_recipe)
    if not changes and measurement.predictions:
        changes = ["a file of its predictions is missing or changed"]
    return StepStatus(stage, "made", measurement.key, tuple(changes or [f"{before.key} was {UNRECORDED}"]))
