"""What would become of a job's training run, its evaluation, lm-eval's figures and its report, and why."""

from collections.abc import Callable, Sequence
from typing import Any

from trainer.common.errors import ArtifactError, ConfigError, RunError
from trainer.config.chat import ChatJob
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.evaluation.cache import (
    find_answers,
    find_evaluation,
    find_scoring,
    identify_answers,
    identify_evaluation,
    identify_scoring,
    measurement,
)
from trainer.evaluation.harness_cache import find_harness, identify_harness, name_of
from trainer.evaluation.metrics.measures import metric_identity
from trainer.evaluation.of_runs import encoded_of, read_evaluation
from trainer.preflight.step_status import NONE_YET, UNRECORDED, StepStatus, explain_new, intact, look
from trainer.records.basis import HarnessResult
from trainer.records.fields import tell_changes
from trainer.records.lease import is_held
from trainer.records.plans import StepPlan
from trainer.records.sealed import read_sealed, require_sealed
from trainer.registry.facts import read_facts
from trainer.registry.report import find_fault
from trainer.store.manifest import ArtifactRef, read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, EVALUATION, FINAL, FINAL_KIND, HARNESS, PLAN
from trainer.store.storage import Store
from trainer.training.checkpoint import look_for_checkpoint
from trainer.training.identity import Run, TrainingData, TrainingJob, final_form, final_manifest, finished_run
from trainer.training.pointer_repair import find_config_fault


def explain_run(
    store: Store,
    job: TrainingJob,
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


def explain_harness(store: Store, measuring: EvaluateJob) -> StepStatus:
    """Whether lm-eval measured a run's final model on the same tasks."""
    wanted = identify_harness(store, measuring, own=True)
    if find_harness(store, wanted) is not None:
        return StepStatus("harness", "reused", wanted.keys[0])
    values = intact(read_sealed, store, wanted.keys[0])
    if values is None:
        return StepStatus("harness", "made", wanted.keys[0], (NONE_YET,))
    before = HarnessResult(**values).identities()
    changed = [f"{name}: not measured yet" for name in wanted.tasks if name not in before]
    changed += [
        f"{name}: its files or data, limit, few_shot, chat_template or lm-eval's version are others"
        for name, identity in wanted.tasks.items()
        if before.get(name, name_of(identity)) != name_of(identity)
    ]
    return StepStatus("harness", "made", wanted.keys[0], tuple(changed or [f"{wanted.keys[0]} was {UNRECORDED}"]))


def explain_scores(store: Store, job: PipelineJob, run: str) -> StepStatus:
    """Whether a language model was measured in the same way."""
    plan = intact(read_sealed, store, f"{run}/{PLAN}")  # a damaged one is written anew
    if plan is not None and not StepPlan(**plan).holds_out:
        return StepStatus("evaluation", "left out", reasons=("nothing is held out",))
    wanted = identify_evaluation(store, measurement(job, run))
    if find_evaluation(store, wanted) is not None:
        return StepStatus("evaluation", "reused", wanted.key)
    differences = _compare_settings(store, job, run) if _own(store, run) else [NONE_YET]
    return StepStatus("evaluation", "made", wanted.key, tuple(differences or [f"{run}/{EVALUATION} was {UNRECORDED}"]))


def explain_scoring(store: Store, job: FinetuneJob, data: ArtifactRef, run: str) -> StepStatus:
    """Whether a fine-tuned model's figures and predictions are there."""
    own = _own(store, run)
    wanted = identify_scoring(store, job, run, encoded=data.key)
    key = wanted.key
    if find_scoring(store, wanted) is not None:
        return StepStatus("evaluation", "reused", key)
    if (noted := encoded_of(store, run)) != data.key:
        return StepStatus("evaluation", "made", key, (f"another test split: {noted} -> {data.key}",))
    if own is None:
        return StepStatus("evaluation", "made", key, (NONE_YET,))
    if own["fingerprint"] == wanted.fingerprint:
        return StepStatus("evaluation", "made", key, ("a file of its predictions is missing or changed",))
    recorded = FinetuneJob.model_validate(require_sealed(store, f"{run}/{CONFIG}")["job"])
    if gone := [name for name in recorded.evaluation.metrics or [] if _is_gone(name)]:
        reason = f"{key} may have been made with a metric that is not there any more: {', '.join(gone)}"
        return StepStatus("evaluation", "made", key, (reason,))
    known = identify_scoring(store, recorded, run).fingerprint == own["fingerprint"]
    differences = _compare_settings(store, job, run, {"metrics"}) if known else []
    return StepStatus("evaluation", "made", key, tuple(differences or [f"{key} was {UNRECORDED}"]))


def explain_answers(store: Store, job: ChatJob, data: ArtifactRef, run: str) -> StepStatus:
    """Whether the figures and the answers of a model that answers are there."""
    own = _own(store, run)
    wanted = identify_answers(store, job, run, encoded=data.key)
    if find_answers(store, wanted) is not None:
        return StepStatus("evaluation", "reused", wanted.key)
    if (noted := encoded_of(store, run)) != data.key:
        return StepStatus("evaluation", "made", wanted.key, (f"another test split: {noted} -> {data.key}",))
    differences = [NONE_YET] if own is None else _compare_settings(store, job, run)
    return StepStatus("evaluation", "made", wanted.key, tuple(differences or [f"{wanted.key} was {UNRECORDED}"]))


def _is_gone(metric: str) -> bool:
    """Whether a metric cannot be compared, as its file was moved or deleted."""
    try:
        metric_identity(metric)
    except ConfigError:
        return True
    return False


def _compare_settings(store: Store, job: TrainingJob, run: str, only: set[str] | None = None) -> list[str]:
    """What differs from the settings that the run was measured with: those in its config.json."""
    old = require_sealed(store, f"{run}/{CONFIG}")["job"]
    new = job.model_dump(mode="json")
    before, now = (
        {
            "evaluation": {key: value for key, value in each["evaluation"].items() if _counts(key, only)},
            "training": {"precision": each["training"]["precision"]},
        }
        for each in (old, new)
    )
    return tell_changes(before, now)


def _counts(setting: str, only: set[str] | None) -> bool:
    """Whether a setting of the evaluation decides its figures; what lm-eval measures is a stage of its own."""
    return setting != "harness" and (only is None or setting in only)


def _own(store: Store, run: str) -> dict[str, Any] | None:
    """The run's own evaluation, if it has one that counts."""
    return intact(read_evaluation, store, run, intact(read_sealed, store, f"{run}/{CONFIG}") or {})
