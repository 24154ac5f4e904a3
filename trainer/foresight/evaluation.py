"""What would become of the evaluation of a finished run, and why."""

from typing import Any

from trainer.common.errors import ConfigError
from trainer.config.chat import ChatJob
from trainer.config.jobs import PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.evaluation.cache import (
    encoded_of,
    find_answers,
    find_evaluation,
    find_scoring,
    identify_answers,
    identify_evaluation,
    identify_scoring,
    measurement,
    read_evaluation,
)
from trainer.evaluation.metrics.measures import metric_identity
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.other_runs import intact
from trainer.foresight.status import NONE_YET, UNRECORDED
from trainer.records.fields import tell_changes
from trainer.records.plans import StepPlan
from trainer.records.sealed import read_sealed, require_sealed
from trainer.store.manifest import ArtifactRef
from trainer.store.names import CONFIG, EVALUATION, PLAN
from trainer.store.storage import Store
from trainer.training.identity import TrainingJob


def foresee_scores(store: Store, job: PipelineJob, run: str) -> Foreseen:
    """Whether a language model was measured in the same way."""
    plan = intact(read_sealed, store, f"{run}/{PLAN}")  # a damaged one is written anew
    if plan is not None and not StepPlan(**plan).holds_out:
        return Foreseen("evaluation", "left out", reasons=("nothing is held out",))
    wanted = identify_evaluation(store, measurement(job, run))
    if find_evaluation(store, wanted) is not None:
        return Foreseen("evaluation", "reused", wanted.key)
    differences = _compare_settings(store, job, run) if _own(store, run) else [NONE_YET]
    return Foreseen("evaluation", "made", wanted.key, tuple(differences or [f"{run}/{EVALUATION} was {UNRECORDED}"]))


def foresee_scoring(store: Store, job: FinetuneJob, data: ArtifactRef, run: str) -> Foreseen:
    """Whether a fine-tuned model's figures and predictions are there."""
    own = _own(store, run)
    wanted = identify_scoring(store, job, run, encoded=data.key)
    key = wanted.key
    if find_scoring(store, wanted) is not None:
        return Foreseen("evaluation", "reused", key)
    if (noted := encoded_of(store, run)) != data.key:
        return Foreseen("evaluation", "made", key, (f"another test split: {noted} -> {data.key}",))
    if own is None:
        return Foreseen("evaluation", "made", key, (NONE_YET,))
    if own["fingerprint"] == wanted.fingerprint:
        return Foreseen("evaluation", "made", key, ("a file of its predictions is missing or changed",))
    recorded = FinetuneJob.model_validate(require_sealed(store, f"{run}/{CONFIG}")["job"])
    if gone := [name for name in recorded.evaluation.metrics or [] if _is_gone(name)]:
        reason = f"{key} may have been made with a metric that is not there any more: {', '.join(gone)}"
        return Foreseen("evaluation", "made", key, (reason,))
    known = identify_scoring(store, recorded, run).fingerprint == own["fingerprint"]
    differences = _compare_settings(store, job, run, {"metrics"}) if known else []
    return Foreseen("evaluation", "made", key, tuple(differences or [f"{key} was {UNRECORDED}"]))


def foresee_answers(store: Store, job: ChatJob, data: ArtifactRef, run: str) -> Foreseen:
    """Whether the figures and the answers of a model that answers are there."""
    own = _own(store, run)
    wanted = identify_answers(store, job, run, encoded=data.key)
    if find_answers(store, wanted) is not None:
        return Foreseen("evaluation", "reused", wanted.key)
    if (noted := encoded_of(store, run)) != data.key:
        return Foreseen("evaluation", "made", wanted.key, (f"another test split: {noted} -> {data.key}",))
    differences = [NONE_YET] if own is None else _compare_settings(store, job, run)
    return Foreseen("evaluation", "made", wanted.key, tuple(differences or [f"{wanted.key} was {UNRECORDED}"]))


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
