"""Pretraining: a causal or masked language model learns from a mixture of corpora; no heavy imports."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.common.errors import ArtifactError, ConfigError
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.kinds import kind_of_run
from trainer.config.models import ModelConfig
from trainer.config.training import MaskingConfig, masks_documents
from trainer.data.decisions import corpora_left
from trainer.data.packing import FORMAT as PACKING
from trainer.data.sources import find_sources
from trainer.evaluation.measurement import Measurement, make_evaluation_job
from trainer.evaluation.metrics import describe_selection
from trainer.kinds.kind import Kind, LazyFunction, Planned, find_run_of
from trainer.models.pretrained import MASKED, Checkpoint, architectures_of, find_model, find_pretrained
from trainer.models.taken_tokenizer import origin_of
from trainer.records.plans import PreparedData
from trainer.records.sealed import require_sealed
from trainer.records.steps import Do, NotMade, only_look
from trainer.store.artifact_files import REPAIR, require_intact
from trainer.store.manifest import ArtifactRef, digest_file, name_in
from trainer.store.names import CONFIG, EVALUATION, FINAL
from trainer.store.storage import Store
from trainer.training.identity import SHARDS_OF, Run, lora_identity, make_run, one_spelling

log = logging.getLogger(__name__)


def prepare(job: PrepareJob, do: Do) -> PreparedData:
    """Run all steps from raw files to shards."""
    decisions = do("curate", job) if job.data.curation is not None else None
    tokenizer = do("tokenizer", job, decisions=decisions)
    corpora = corpora_left(Store(job.store), job.data, decisions)
    shards = [do("tokenize", job, corpus=each.name, tokenizer=tokenizer, decisions=decisions) for each in corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)


def find_prepared(job: PrepareJob) -> PreparedData | None:
    """The job's published decisions, tokenizer and shards, if all exist; the files of shards are not checked."""
    with suppress(NotMade):
        tokenizer = only_look("tokenizer", job)  # first: if it is missing, the raw files need not be checked

        def find(name: str, job: Any, **made: Any) -> ArtifactRef:
            return tokenizer if name == "tokenizer" else only_look(name, job, check=name != "tokenize", **made)

        return prepare(job, find)
    return None


def require_prepared(job: PipelineJob) -> PreparedData:
    """The job's shards. Raises `ArtifactError` if they are missing or damaged."""
    from trainer.data.tokenization import shard_manifests

    data = find_prepared(job.preparation())
    if data is None:
        raise ArtifactError(f"{job.store} holds no shards of these corpora's current files; run prepare-data first")
    store = Store(job.store)
    for ref, manifest in zip(data.shards, shard_manifests(store, data), strict=True):
        require_intact(store, ref.key, manifest, REPAIR, "all" if job.verify else "sizes")
    return data


def identify(job: PipelineJob, data: PreparedData) -> Run:
    """The run that a job and its shards identify."""
    store = Store(job.store)
    found = None if job.model.pretrained is None else find_pretrained(store, job.model.pretrained)
    by_corpus = {name_in(ref.key): ref for ref in data.shards}
    made_from: dict[str, Any] = {
        "data": {name: ref.fingerprint for name, ref in by_corpus.items()},
        "tokenizer": data.tokenizer.fingerprint,
        "model": _model_identity(job.model, found and found.files),
    }
    # Samples are drawn from the corpora in this order. The order of their names is left out, so that runs with it have
    # the names that they had before the order counted.
    if [*by_corpus] != sorted(by_corpus):
        made_from["corpora"] = [*by_corpus]
    reads = {"tokenizer": data.tokenizer, **{f"{SHARDS_OF}{name}": ref for name, ref in by_corpus.items()}}
    evaluation = job.evaluation
    selection = {"during_training": evaluation.during_training, **describe_selection(evaluation, evaluation.harness)}
    taken = job.data.tokenizer.path
    places = {"tokenizer taken from": taken and origin_of(store, taken)}
    return make_run(job, made_from, selection, reads, found, places=places, effective=_effective(job))


def _effective(job: PipelineJob) -> dict[str, Any]:
    """Effective values of settings that depend on others: stride, mixture, masking, document masks and packing."""
    training = job.training
    settings: dict[str, Any] = {}
    if training.stride == training.context:
        settings["stride"] = None
    if len(job.data.corpora) == 1:
        settings["alpha"] = type(training).model_fields["alpha"].default
    if training.masks is not None:
        settings["masking"] = one_spelling(training.masks.model_dump())
    if training.masks_documents:
        settings["document_mask"] = True
    if training.packing == "best_fit":
        settings["packing"] = {"best_fit": PACKING}
    return settings


def plan(job: PipelineJob, data: PreparedData, ranks: int) -> Planned:
    """The plan of a run on shards. Raises `ConfigError` if a setting needs held-out text, but none is held out."""
    from trainer.data.step_plan import plan_run

    planned = plan_run(Store(job.store), data, job, ranks)
    at = f"is held out at data.validation_fraction {job.data.validation_fraction:g}"
    if job.holds_out and not planned.holds_out:
        share = f"no document {at}"
        if (setting := job.asked_of_held_out_text) is not None:
            raise ConfigError(f"{setting} needs held-out text, but {share}: raise it, or remove {setting}")
        log.warning("%s: the model is not evaluated, and continues no prompts; raise it to hold out some", share)
    elif job.holds_out and (without := [each.name for each in planned.corpora if not each.holds_out]):
        log.warning(
            "no document of %s %s: the loss over all corpora does not cover it; raise it to hold out some",
            ", ".join(without), at,
        )  # fmt: skip
    description = f"{planned.windows:,} windows of {job.training.context} tokens"
    return Planned(planned, description, "data-mixture", planned.rows())


def _model_identity(model: ModelConfig, pretrained: dict[str, str] | None) -> dict[str, Any]:
    """The model's settings, with the contents of a file and of a pretrained model instead of their names."""
    identity = {**model.model_dump(exclude={"attention", "lora"}), "pretrained": pretrained}
    if isinstance(model.config, str) and Path(model.config).is_file():
        identity["config"] = digest_file(Path(model.config)).sha256
    if model.lora is not None:
        identity["lora"] = lora_identity(model.lora)
    return {**identity, "config": one_spelling(identity["config"])}


@dataclass(frozen=True)
class Reading:
    """The shard sets and the context to measure with, and how to mask tokens, if at all.

    `document_mask`: whether attention stays within a document, as in training.
    """

    shards: list[str]
    context: int
    masking: MaskingConfig | None
    document_mask: bool


def identify_text(store: Store, job: EvaluateJob) -> Measurement:
    """The measurement of any checkpoint of a language model on held-out text.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` if the data to measure it on is
    unknown.
    """
    found = find_model(store, job.checkpoint)
    read = _what_to_read(store, job, found)
    corpora = [key.rsplit("-", 1)[0] for key in read.shards]
    if twice := sorted({corpus for corpus in corpora if corpora.count(corpus) > 1}):
        raise ConfigError(f"shards lists two sets of {twice[0]}; figures are by corpus, so measure them one at a time")
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
    """The measurement of the final model of a job's run, or of an `other` run on the shards with these keys."""
    evaluation_job = evaluation_of(job, other or run)
    if other is None:  # the run's record already lists this evaluation
        return replace(identify_text(store, evaluation_job), place=f"{run}/{EVALUATION}")
    evaluated = evaluation_job.evaluation.model_copy(update={"prompts": []})
    alike = {"shards": list(data or ()), "context": job.training.context, "evaluation": evaluated}
    return identify_text(store, evaluation_job.model_copy(update=alike))


def evaluation_of(job: PipelineJob, run: str) -> EvaluateJob:
    """The evaluation job that measures a run's final model with the settings of its training job."""
    return make_evaluation_job(job, run, job.evaluation.of_finished())


def _what_to_read(store: Store, job: EvaluateJob, found: Checkpoint) -> Reading:
    """The given shard sets and context, else those of the run that made the checkpoint; and how it masks tokens."""
    of_run = find_run_of(store, found.key)
    run: Any = of_run and of_run[1]
    shards = job.shards or (run and [ref["key"] for ref in run["data"].get("shards", ())])
    context = job.context or (run and run["job"]["training"].get("context"))
    if run and (kind := kind_of_run(run)).folder != __package__ and not (shards and context):
        raise ConfigError(
            f"{job.checkpoint} belongs to a run of {kind.name}: its figures on held-out data are in that run's "
            "eval.json. To measure it on held-out text, set `shards` and `context`"
        )
    if not shards or not context:
        raise ConfigError(f"{job.checkpoint} does not belong to a run in this store: set `shards` and `context`")
    training = run["job"]["training"] if run else {}
    apart = masks_documents(training.get("packing"), training.get("document_mask"))
    return Reading(shards, context, _masking_of(training, found), apart)


def _masking_of(training: dict[str, Any], found: Checkpoint) -> MaskingConfig | None:
    """How the checkpoint's run masks tokens; a masked model without a run is measured with the default shares."""
    if not any(name.endswith(MASKED) for name in architectures_of(found.folder)):
        return None
    return MaskingConfig(**(training.get("masking") or {}))


def _measured_by(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an evaluation that determine the figures of a finished model."""
    decide = EvaluationConfig.model_fields.keys() - {"harness"}
    return {name: value for name, value in evaluation.items() if name in decide}


def _own_place(store: Store, job: EvaluateJob, found: Checkpoint) -> str | None:
    """The run's own eval.json, if its final model is measured with the settings of its job; else None."""
    if found.key is None or not found.key.endswith(f"/{FINAL}") or job.shards is not None or job.context is not None:
        return None
    run = found.key.removesuffix(f"/{FINAL}")
    settings = require_sealed(store, f"{run}/{CONFIG}")["job"]
    measured = _measured_by(job.evaluation.model_dump(mode="json"))
    own = _measured_by(settings["evaluation"]) == measured and settings["training"]["precision"] == job.precision
    return f"{run}/{EVALUATION}" if own else None


KIND = Kind(
    preflight=LazyFunction("trainer.kinds.pretraining.preflight.preflight"),
    prepare=lambda job, do: prepare(job.preparation(), do),
    find_files=lambda store, job: [find_sources(corpus) for corpus in job.data.corpora],
    identify=identify,
    open=LazyFunction("trainer.kinds.pretraining.workload.open_workload"),
    plan=plan,
    measurement=identify_own,
    measure=LazyFunction("trainer.kinds.pretraining.evaluate.measure_text"),
    checkpoint=identify_text,
    report_content=LazyFunction("trainer.kinds.pretraining.page.describe_pretraining"),
    compared="trainer.kinds.pretraining.page.COMPARED",
    is_light=True,
)
