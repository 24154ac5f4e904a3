"""What would become of a job's training run, its evaluation, lm-eval's figures and its report, and why."""

from collections.abc import Callable, Sequence
from typing import Any

from trainer.common.errors import ArtifactError, RunError
from trainer.config.runs import RunJob
from trainer.evaluation.measurement import Measurement, find_result, read_result
from trainer.preflight.step_status import NONE_YET, UNRECORDED, StepStatus, explain_new, intact, look
from trainer.records.evaluations import Result
from trainer.records.fields import tell_changes
from trainer.records.lease import is_held
from trainer.records.plans import read_plan
from trainer.records.sealed import read_sealed
from trainer.registry.facts import read_facts
from trainer.registry.report import find_fault
from trainer.store.manifest import read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, EVALUATION, FINAL, FINAL_KIND, HARNESS, PLAN
from trainer.store.storage import Store
from trainer.training.checkpoint import look_for_checkpoint
from trainer.training.identity import Run, TrainingData, final_form, final_manifest, finished_run
from trainer.training.pointer_repair import find_config_fault


def explain_run(
    store: Store,
    job: RunJob,
    data: TrainingData | None,
    before: Sequence[StepStatus],
    identify: Callable[[Any, Any], Run],
) -> StepStatus:
    """Whether the run is finished, continues, begins or is refused. `data` is None while its name is not known."""
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
        differences = tell_changes(config["identity"], run.identity) or ["its format"]
        return StepStatus(
            "training", "refused", run.key, (f"{run.key} was made with other settings", *differences), work
        )
    if fault is None and finished_run(store, run) is not None:
        manifest = final_manifest(store, run.key)
        return StepStatus("training", "reused", run.key, created=manifest.created if manifest else "")
    if is_held(store, run.key):
        return StepStatus("training", "refused", run.key, ("a living process is at work on it",), work)
    if run.origin is not None and config is None and look_for_checkpoint(store, run.origin)[0] is None:
        return StepStatus("training", "refused", run.key, (f"{run.origin} has no checkpoint to fork from",), work)
    if config is None and fault is None:
        return StepStatus("training", "made", run.key, tuple(explain_new(store, job.name, run)), work)
    return _continue(store, run, work, fault)


def explain_report(
    store: Store, data: Sequence[StepStatus], run: StepStatus, measured: Sequence[StepStatus]
) -> StepStatus:
    """Whether the report was made from the same."""
    own = {f"{run.key}/{name}" for name in (EVALUATION, HARNESS)}
    unsettled = [stage for stage in (*data, run) if stage.verdict != "reused"]
    for stage in measured:
        if stage.verdict == "depends" or (stage.verdict == "made" and stage.key in own):
            unsettled.append(stage)
    if unsettled or run.key is None:
        return StepStatus("report", "depends", reasons=(unsettled[-1].later,))
    try:
        fault = find_fault(store, read_facts(store, run.key))
    except (ArtifactError, RunError) as error:
        return StepStatus("report", "refused", reasons=(str(error),))
    key = f"{run.key}/report.html"
    return StepStatus("report", "made", key, (fault,)) if fault else StepStatus("report", "reused", key)


def _continue(store: Store, run: Run, work: str, fault: str | None) -> StepStatus:
    """Where a run that was begun goes on, and the fault of its config.json, if that is written anew then."""
    checkpoint, damaged = look_for_checkpoint(store, run.key, run.fingerprint)
    told = [f"written anew: {fault}"] if fault else []
    final, faults = look(store, f"{run.key}/{FINAL}", FINAL_KIND)
    unfinished = [f"{FINAL}: {each}" for each in faults]
    if final is not None and final_form(final) != run.form:
        unfinished.append(f"model.lora.publish: {final_form(final)} -> {run.form}")
    problems = [*told, *damaged.values(), *unfinished]
    if checkpoint is None and damaged:
        return StepStatus("training", "refused", run.key, ("no checkpoint is intact", *problems), work)
    if checkpoint is None:
        return StepStatus("training", "made", run.key, ("it was begun and has no checkpoint yet", *problems), work)
    manifest = read_manifest(store, f"{run.key}/{checkpoint}", CHECKPOINT_KIND)
    plan = intact(read_sealed, store, f"{run.key}/{PLAN}")
    step = manifest.details["step"] if manifest else 0
    planned = f" of {plan['total_steps']:,}" if plan else ""
    return StepStatus("training", "continued", run.key, (f"continues from step {step:,}{planned}", *problems), work)


def holds_out(store: Store, run: str) -> bool:
    """Whether the plan of a run has something to be measured on, as far as there is one that can be read."""
    plan = intact(read_sealed, store, f"{run}/{PLAN}")  # a damaged one is written anew
    return plan is None or read_plan(plan).holds_out


def own_result(store: Store, run: str) -> Result | None:
    """The run's own evaluation, if it has one that counts."""
    return intact(read_result, store, run, intact(read_sealed, store, f"{run}/{CONFIG}") or {})


def explain_evaluation(
    store: Store, wanted: Measurement, before: Result | None, stage: str = "evaluation"
) -> StepStatus:
    """Whether a finished run's model was measured in the same way, and what differs from how it was `before`."""
    if find_result(store, wanted) is not None:
        return StepStatus(stage, "reused", wanted.key)
    if before is None:
        return StepStatus(stage, "made", wanted.key, (NONE_YET,))
    if before.by == "split" and tuple(before.data) != wanted.data:
        told = f"{', '.join(before.data)} -> {', '.join(wanted.data)}"
        return StepStatus(stage, "made", wanted.key, (f"another test split: {told}",))
    changes = tell_changes(before.recipe, wanted.whole_recipe)
    if not changes and wanted.predictions:
        changes = ["a file of its predictions is missing or changed"]
    return StepStatus(stage, "made", wanted.key, tuple(changes or [f"{before.key} was {UNRECORDED}"]))
