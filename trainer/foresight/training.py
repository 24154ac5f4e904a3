"""What would become of a job's training run and its report, and why."""

from collections.abc import Callable, Sequence
from typing import Any

from trainer.common.errors import ArtifactError, RunError
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.other_runs import explain_new, intact
from trainer.foresight.status import look
from trainer.records.fields import tell_changes
from trainer.records.lease import is_held
from trainer.records.sealed import read_sealed
from trainer.report.making import find_fault
from trainer.runs.facts import read_facts
from trainer.store.manifest import read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, EVALUATION, FINAL, FINAL_KIND, HARNESS, PLAN
from trainer.store.storage import Store
from trainer.training.checkpoint import look_for_checkpoint
from trainer.training.identity import Run, TrainingData, TrainingJob, final_form, final_manifest, finished_run
from trainer.training.pointer_repair import find_config_fault


def foresee_run(
    store: Store,
    job: TrainingJob,
    data: TrainingData | None,
    before: Sequence[Foreseen],
    identify: Callable[[Any, Any], Run],
) -> Foreseen:
    """Whether the run is finished, continues, begins or is refused. `data` is None while its name is not known."""
    waits = [stage for stage in before if stage.verdict != "reused"]
    if data is None or any(stage.key is None or stage.verdict == "refused" for stage in before):
        return Foreseen("training", "depends", reasons=(waits[0].later,))
    try:
        run = identify(job, data)
        fault = find_config_fault(store, run)
        config = read_sealed(store, f"{run.key}/{CONFIG}") if fault is None else None
    except (ArtifactError, RunError) as error:
        return Foreseen("training", "refused", reasons=(str(error),))
    work = "; ".join(stage.later for stage in waits)
    if config is not None and config["fingerprint"] != run.fingerprint:
        differences = tell_changes(config["identity"], run.identity) or ["its format"]
        return Foreseen("training", "refused", run.key, (f"{run.key} was made with other settings", *differences), work)
    if fault is None and finished_run(store, run) is not None:
        manifest = final_manifest(store, run.key)
        return Foreseen("training", "reused", run.key, created=manifest.created if manifest else "")
    if is_held(store, run.key):
        return Foreseen("training", "refused", run.key, ("a living process is at work on it",), work)
    if run.origin is not None and config is None and look_for_checkpoint(store, run.origin)[0] is None:
        return Foreseen("training", "refused", run.key, (f"{run.origin} has no checkpoint to fork from",), work)
    if config is None and fault is None:
        return Foreseen("training", "made", run.key, tuple(explain_new(store, job.name, run)), work)
    return _continue(store, run, work, fault)


def foresee_report(store: Store, data: Sequence[Foreseen], run: Foreseen, measured: Sequence[Foreseen]) -> Foreseen:
    """Whether the report was made from the same."""
    own = {f"{run.key}/{name}" for name in (EVALUATION, HARNESS)}
    unsettled = [stage for stage in (*data, run) if stage.verdict != "reused"]
    for stage in measured:
        if stage.verdict == "depends" or (stage.verdict == "made" and stage.key in own):
            unsettled.append(stage)
    if unsettled or run.key is None:
        return Foreseen("report", "depends", reasons=(unsettled[-1].later,))
    try:
        fault = find_fault(store, read_facts(store, run.key))
    except (ArtifactError, RunError) as error:
        return Foreseen("report", "refused", reasons=(str(error),))
    key = f"{run.key}/report.html"
    return Foreseen("report", "made", key, (fault,)) if fault else Foreseen("report", "reused", key)


def _continue(store: Store, run: Run, work: str, fault: str | None) -> Foreseen:
    """Where a run that was begun goes on, and the fault of its config.json, if that is written anew then."""
    checkpoint, damaged = look_for_checkpoint(store, run.key, run.fingerprint)
    told = [f"written anew: {fault}"] if fault else []
    final, faults = look(store, f"{run.key}/{FINAL}", FINAL_KIND)
    unfinished = [f"{FINAL}: {each}" for each in faults]
    if final is not None and final_form(final) != run.form:
        unfinished.append(f"model.lora.publish: {final_form(final)} -> {run.form}")
    problems = [*told, *damaged.values(), *unfinished]
    if checkpoint is None and damaged:
        return Foreseen("training", "refused", run.key, ("no checkpoint is intact", *problems), work)
    if checkpoint is None:
        return Foreseen("training", "made", run.key, ("it was begun and has no checkpoint yet", *problems), work)
    manifest = read_manifest(store, f"{run.key}/{checkpoint}", CHECKPOINT_KIND)
    plan = intact(read_sealed, store, f"{run.key}/{PLAN}")
    step = manifest.details["step"] if manifest else 0
    planned = f" of {plan['total_steps']:,}" if plan else ""
    return Foreseen("training", "continued", run.key, (f"continues from step {step:,}{planned}", *problems), work)
