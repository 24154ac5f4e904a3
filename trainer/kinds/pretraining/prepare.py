"""Raw text to everything that training reads, what decides the outcome of a pretraining run, and its plan."""

from pathlib import Path
from typing import Any

from trainer.config.jobs import PipelineJob, PrepareJob
from trainer.config.models import ModelConfig
from trainer.config.training import TrainingConfig
from trainer.data.decisions import corpora_left
from trainer.data.packing import FORMAT as PACKING
from trainer.evaluation.selection import describe_selection
from trainer.kinds.kind import Planned
from trainer.kinds.tuning import describe_base
from trainer.models.pretrained import digest_files
from trainer.records.named_steps import Do, look_for
from trainer.records.plans import PreparedData
from trainer.store.manifest import ArtifactRef, digest_file
from trainer.store.storage import Store
from trainer.training.identity import SHARDS_OF, Run, lora_identity, make_run, one_spelling


def prepare(job: PrepareJob, do: Do) -> PreparedData:
    """The whole way from raw files to shards."""
    decisions = do("curate", job) if job.data.curation is not None else None
    tokenizer = do("tokenizer", job, decisions=decisions)
    corpora = corpora_left(Store(job.store), job.data, decisions)
    shards = [do("tokenize", job, corpus=each.name, tokenizer=tokenizer, decisions=decisions) for each in corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)


def find_prepared(job: PrepareJob) -> PreparedData | None:
    """The job's published decisions, tokenizer and shards, if all exist; whether shards are intact is not looked at."""
    tokenizer = look_for("tokenizer", job)  # first: without it, raw files need not be looked at

    def find(name: str, job: Any, **made: Any) -> ArtifactRef:
        found = tokenizer if name == "tokenizer" else look_for(name, job, check=name != "tokenize", **made)
        if found is None:
            raise _NotThere
        return found

    try:
        return prepare(job, find) if tokenizer is not None else None
    except _NotThere:
        return None


class _NotThere(Exception):
    pass


def identify(job: PipelineJob, data: PreparedData) -> Run:
    """The run that a job and its shards make."""
    base = None
    if (name := job.model.pretrained) is not None:
        base = describe_base(name, Path(name), "folder" if Path(name).is_dir() else "hub")
    by_corpus = {ref.key.split("/")[1].rsplit("-", 1)[0]: ref for ref in data.shards}
    made_from = {
        "data": {name: ref.fingerprint for name, ref in by_corpus.items()},
        "tokenizer": data.tokenizer.fingerprint,
        "model": _model_identity(job.model),
    }
    reads = {"tokenizer": data.tokenizer, **{f"{SHARDS_OF}{name}": ref for name, ref in by_corpus.items()}}
    asked = job.evaluation
    selection = {"during_training": asked.during_training, **describe_selection(asked, asked.harness)}
    taken = job.data.tokenizer.path
    places = {"tokenizer taken from": taken and str(Path(taken).absolute())}
    return make_run(job, made_from, selection, reads, base=base, places=places, effective=_effective(job.training))


def _effective(training: TrainingConfig) -> dict[str, Any]:
    """What masking, attention within documents and packing come to with the other settings."""
    settings: dict[str, Any] = {}
    if training.masks is not None:
        settings["masking"] = one_spelling(training.masks.model_dump())
    if training.masks_documents:
        settings["document_mask"] = True
    if training.packing == "best_fit":
        settings["packing"] = {"best_fit": PACKING}
    return settings


def plan(job: PipelineJob, data: PreparedData, ranks: int) -> Planned:
    """The plan of a run on shards."""
    from trainer.data.step_plan import plan_run

    planned = plan_run(Store(job.store), data, job.training, ranks)
    told = f"{planned.windows:,} windows of {job.training.context} tokens"
    return Planned(planned, told, "data-mixture", planned.rows())


def _model_identity(model: ModelConfig) -> dict[str, Any]:
    """The model's settings, with the contents of local files in place of their names."""
    identity = model.model_dump(exclude={"attention", "lora"})
    for key in ("config", "pretrained"):
        value = identity[key]
        if isinstance(value, str) and Path(value).is_file():
            identity[key] = digest_file(Path(value)).sha256
        elif isinstance(value, str) and Path(value).is_dir():
            identity[key] = digest_files(Path(value))
    if model.lora is not None:
        identity["lora"] = lora_identity(model.lora)
    return {**identity, "config": one_spelling(identity["config"])}
