"""How a language model is measured: on which held-out text, read in which way. Free of heavy imports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.config.kinds import kind_of_run
from trainer.config.training import MaskingConfig, masks_documents
from trainer.evaluation.measurement import Measurement, ask_of_run
from trainer.models.pretrained import MASKED, Checkpoint, find_model, read_object
from trainer.records.sealed import read_sealed, require_sealed
from trainer.registry.facts import require_job
from trainer.store.names import CONFIG, EVALUATION, FINAL
from trainer.store.storage import Store


@dataclass(frozen=True)
class Reading:
    """Which shards are read, in windows of how many tokens, and how tokens are hidden if they are.

    `document_mask`: whether attention stays within a document, as it did in training.
    """

    shards: list[str]
    context: int
    masking: MaskingConfig | None
    document_mask: bool


def identify_text(store: Store, job: EvaluateJob) -> Measurement:
    """The measurement of any checkpoint of a language model on held-out text.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` if it is not known what to measure it
    on.
    """
    found = find_model(store, job.checkpoint)
    read = _what_to_read(store, job, found)
    corpora = [key.rsplit("-", 1)[0] for key in read.shards]
    if twice := sorted({corpus for corpus in corpora if corpora.count(corpus) > 1}):
        raise ConfigError(f"shards names two sets of {twice[0]}; figures are by corpus, so measure them one at a time")
    return Measurement(
        model=found,
        checkpoint=job.checkpoint,
        recipe={
            "context": read.context,
            "precision": job.precision,
            "evaluation": _measured_by(job.evaluation.model_dump(mode="json")),
            **({"masking": read.masking.model_dump()} if read.masking else {}),
            **({"document_mask": True} if read.document_mask else {}),
        },
        settings=(job, read),
        data=tuple(read.shards),
        place=_own_place(store, job, found),
        precision=job.precision,
        device=job.device,
    )


def identify_own(
    store: Store, job: PipelineJob, run: str, data: Sequence[str] | None, other: str | None = None
) -> Measurement:
    """The measurement of the final model of a job's run, or of an `other` run on the shards of these keys."""
    asked = evaluation_of(job, other or run)
    if other is None:
        return identify_text(store, asked)
    evaluated = asked.evaluation.model_copy(update={"prompts": []})
    alike = {"shards": list(data or ()), "context": job.training.context, "evaluation": evaluated}
    return identify_text(store, asked.model_copy(update=alike))


def evaluation_of(job: PipelineJob, run: str) -> EvaluateJob:
    """How the final model of a run is measured as a job says."""
    return ask_of_run(job, run, job.evaluation.of_finished())


def _what_to_read(store: Store, job: EvaluateJob, found: Checkpoint) -> Reading:
    """The shard sets and the window length, as given, else those of the run that made the checkpoint; and its masks."""
    run: Any = None
    if found.key is not None and found.key.startswith("runs/"):
        name = f"runs/{found.key.split('/')[1]}"
        run = read_sealed(store, f"{name}/{CONFIG}")
        if run is not None:
            require_job(store, name, run)
    shards = job.shards or (run and [ref["key"] for ref in run["data"].get("shards", ())])
    context = job.context or (run and run["job"]["training"].get("context"))
    if run and (kind := kind_of_run(run)).folder != __package__ and not (shards and context):
        raise ConfigError(
            f"{job.checkpoint} is of a run of {kind.name}: how well it does on what it was not trained on stands in "
            "that run's eval.json. To measure it on held-out text, say which `shards`, and the `context`"
        )
    if not shards or not context:
        raise ConfigError(
            f"{job.checkpoint} is not of a run in this store: say which `shards` to evaluate on, and the `context`"
        )
    training = run["job"]["training"] if run else {}
    apart = masks_documents(training.get("packing"), training.get("document_mask"))
    return Reading(shards, context, _masking_of(training, found), apart)


def _masking_of(training: dict[str, Any], found: Checkpoint) -> MaskingConfig | None:
    """How the run that made a checkpoint hides tokens; a masked model of no run is measured with the usual shares."""
    names = read_object(Path(found.folder, "config.json")).get("architectures") or []
    if not any(str(name).endswith(MASKED) for name in names):
        return None
    return MaskingConfig(**(training.get("masking") or {}))


def _measured_by(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an evaluation that decide the figures of a finished model."""
    decide = EvaluationConfig.model_fields.keys() - {"harness"}
    return {name: value for name, value in evaluation.items() if name in decide}


def _own_place(store: Store, job: EvaluateJob, found: Checkpoint) -> str | None:
    """The run's own eval.json for its final model measured as its job says."""
    if found.key is None or not found.key.endswith(f"/{FINAL}") or job.shards is not None or job.context is not None:
        return None
    run = found.key.removesuffix(f"/{FINAL}")
    settings = require_sealed(store, f"{run}/{CONFIG}")["job"]
    asked = _measured_by(job.evaluation.model_dump(mode="json"))
    own = _measured_by(settings["evaluation"]) == asked and settings["training"]["precision"] == job.precision
    return f"{run}/{EVALUATION}" if own else None
