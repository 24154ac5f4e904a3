"""Facts about a finished run, read once from the store; the report, model card and lineage are built from them.

Also the lineage record: the key, fingerprint and digest of every artifact that a model was built from. `headrace
lineage STORE MODEL` prints it (trainer/registry/print_store.py).

This module imports no training libraries, so that a report takes about a second.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainer.common.errors import ArtifactError, RunError, in_one_line
from trainer.config.kinds import kind_of_run
from trainer.data.decisions import KIND as DECISIONS
from trainer.data.decisions import decisions_behind
from trainer.data.encoded import KIND as ENCODED
from trainer.data.shards import KIND as SHARDS
from trainer.data.tokenization import SOURCES
from trainer.evaluation.decontamination import clean_of
from trainer.evaluation.measurement import read_result
from trainer.models.tensor_files import read_tensors
from trainer.models.tokenizer import KIND as TOKENIZER
from trainer.models.weights import ADAPTER_WEIGHTS
from trainer.records.evaluations import CleanOf, Result
from trainer.records.plans import RunPlan, read_plan
from trainer.records.sealed import read_listed, read_pointer, read_sealed
from trainer.records.shapes import remedy_of
from trainer.registry.references import artifact_kind, artifacts_of
from trainer.store.details import DATA_KINDS
from trainer.store.manifest import MANIFEST, FileRecord, Manifest, fingerprint, read_manifest
from trainer.store.names import (
    BEST,
    CARD,
    CHECKPOINT_KIND,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    EPOCHS,
    EVALUATION,
    FINAL,
    HARNESS,
    LAST,
    PLAN,
    REFERENCE_KIND,
)
from trainer.store.storage import Store
from trainer.training.identity import final_manifest
from trainer.training.metrics_reader import read_records


class Source(NamedTuple):
    """An input artifact of the run: its key, its manifest, and the manifest's digest."""

    key: str
    manifest: Manifest
    sha256: str


class KeptCheckpoint(NamedTuple):
    """A checkpoint in the store, its validation figures by name, and the reasons to keep it: `last`, `epoch 3`."""

    name: str
    step: int
    scores: dict[str, float]
    size: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class RecordedRun:
    """The records of a run, finished or not; `model_config` is the configuration of its model."""

    key: str
    config: dict[str, Any]
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    evaluation: Result | None
    model_config: dict[str, Any]

    @property
    def name(self) -> str:
        return self.key.rsplit("/", 1)[-1]

    @property
    def job(self) -> dict[str, Any]:
        """The job as it ran, with all defaults filled in."""
        job: dict[str, Any] = self.config["job"]
        return job

    @property
    def forked_from(self) -> str | None:
        """The checkpoint that a fork began with; None for other runs."""
        fork = self.config.get("fork")
        return f"{fork['run']}/{fork['checkpoint']}" if fork else None

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind, ordered by step."""
        return [record for record in self.records if record["kind"] == kind]


@dataclass(frozen=True)
class RunFacts(RecordedRun):
    """A finished run. `final` omits the model card, which is generated from the rest; `card` is its file record.

    `sources` are the inputs: a tokenizer, shards and the curation decisions about their text, or one encoded data set.
    """

    config_sha256: str
    plan: RunPlan
    final: Manifest
    card: FileRecord | None
    parameters: dict[str, int]
    sources: list[Source]
    clean_of: CleanOf | None
    checkpoints: list[KeptCheckpoint]

    @property
    def steps(self) -> int:
        """The steps done, also if records of them are lost: fewer than planned if training stopped early."""
        known = [*(record["step"] for record in self.records), *(each.step for each in self.checkpoints)]
        return max(known, default=self.plan.total_steps)

    @property
    def whole_parameters(self) -> int:
        """The parameters of the whole model; an adapter's file holds only the trained ones."""
        return self.trained["parameters"] if self.trained and self.is_adapter else sum(self.parameters.values())

    @property
    def is_adapter(self) -> bool:
        """Whether the final model is an adapter, which is loaded together with its base model."""
        return holds_adapter(self.final)

    @property
    def trained(self) -> dict[str, int] | None:
        """Counts of `trained` parameters and of all `parameters`; None if no parameter was frozen."""
        counts: dict[str, int] | None = self.final.details.get("trained")
        return counts

    @property
    def best_step(self) -> int | None:
        """The step of the final model if it is the best checkpoint; None if it is the last one."""
        step: int | None = self.final.details.get("step")
        return step

    @property
    def made_at(self) -> int:
        """The step of the final model."""
        return self.steps if self.best_step is None else self.best_step

    def made_from(self, kind: str) -> list[Source]:
        """The input artifacts of one kind."""
        return [source for source in self.sources if source.manifest.kind == kind]

    def fingerprint(self, recipe: Any) -> str:
        """Fingerprint of all these facts and of the `recipe` that turns them into a report."""
        return fingerprint(
            [
                recipe, self.config_sha256, self.plan.model_dump(), self.environment, self.records,
                self.evaluation and self.evaluation.model_dump(mode="json"),
                self.final.model_dump(), [[source.key, source.sha256] for source in self.sources], self.checkpoints,
                *([self.clean_of.model_dump()] if self.clean_of else []),
            ]
        )  # fmt: skip


def read_facts(store: Store, run_key: str) -> RunFacts:
    """Read a run; raises `RunError` if it is missing or unfinished, `ArtifactError` if one of its inputs is missing."""
    config = read_config(store, run_key)
    final, plan = final_manifest(store, run_key), read_sealed(store, f"{run_key}/{PLAN}")
    if final is None or plan is None:
        missing = FINAL if final is None else PLAN
        raise RunError(f"{store.path(run_key)} has no {missing} yet: finish the training, then write the report")
    return RunFacts(
        **read_recorded(store, run_key, config, f"{run_key}/{FINAL}", final),
        config_sha256=hashlib.sha256(store.read_bytes(f"{run_key}/{CONFIG}")).hexdigest(),
        plan=read_plan(plan),
        final=final.model_copy(update={"files": [record for record in final.files if record.name != CARD]}),
        card=next((record for record in final.files if record.name == CARD), None),
        parameters=count_parameters(store, f"{run_key}/{FINAL}", final),
        sources=_read_sources(store, artifacts_of(config)),
        clean_of=clean_of(store, run_key),
        checkpoints=_find_checkpoints(store, run_key),
    )


def read_recorded(
    store: Store, run_key: str, config: dict[str, Any], model: str, manifest: Manifest | None
) -> dict[str, Any]:
    """The fields of a `RecordedRun`; `model` is the key of its newest model, `manifest` that model's manifest."""
    listed = manifest.digests() if manifest else {}
    return {
        "key": run_key,
        "config": config,
        "environment": read_sealed(store, f"{run_key}/{ENVIRONMENT}") or {},
        "records": read_records(store, run_key),
        "evaluation": read_result(store, run_key, config),
        "model_config": read_listed(store, f"{model}/config.json", listed.get("config.json")) or {},
    }


def read_config(store: Store, run_key: str) -> dict[str, Any]:
    """Read a run's config.json; raises `RunError` if it is missing, `ArtifactError` if it is damaged."""
    config = read_sealed(store, f"{run_key}/{CONFIG}")
    if config is None:
        raise RunError(
            f"{store.path(run_key)} holds no run: it has no {CONFIG}; {store.path('runs')} lists the runs' names"
        )
    require_job(store, run_key, config)
    return config


def require_job(store: Store, run_key: str, config: dict[str, Any]) -> None:
    """Raise `ArtifactError` if the job in a run's config.json is invalid; unknown settings are ignored."""
    try:
        kind_of_run(config).schema.model_validate_json(json.dumps(config["job"]), strict=True, extra="ignore")
    except ValueError as error:
        problem = f"job.{in_one_line(error)}" if isinstance(error, ValidationError) else error
        key = f"{run_key}/{CONFIG}"
        raise ArtifactError(f"{store.path(key)} is damaged: {problem}; {remedy_of(key)}") from error


def _read_sources(store: Store, keys: list[str]) -> list[Source]:
    """Read a run's inputs, and the curation decisions that they refer to."""
    named = [_read_source(store, key) for key in keys]
    decisions = dict.fromkeys(key for source in named for key in decisions_behind(source.manifest))
    return [*named, *(_read_source(store, key) for key in decisions)]


def _read_source(store: Store, key: str) -> Source:
    manifest = read_manifest(store, key, artifact_kind(key))
    if manifest is None:
        raise ArtifactError(
            f"{store.path(key)}, an input of this run, is missing; prepare the data again to rebuild it"
        )
    return Source(key, manifest, hashlib.sha256(store.read_bytes(f"{key}/{MANIFEST}")).hexdigest())


def holds_adapter(manifest: Manifest) -> bool:
    """Whether a model is an adapter, by the manifest of its folder."""
    return ADAPTER_WEIGHTS in manifest.digests()


def count_parameters(store: Store, key: str, final: Manifest) -> dict[str, int]:
    """Count stored parameters by number format, from the headers of the safetensors files.

    Tied parameters are stored once and count once.
    """
    counts: dict[str, int] = {}
    for record in final.files:
        if not record.name.endswith(".safetensors"):
            continue
        try:
            tensors = read_tensors(store, f"{key}/{record.name}", record.size)
        except ArtifactError as error:
            raise ArtifactError(f"{error}; train the run again") from error
        for tensor in tensors.values():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
    return counts


def _find_checkpoints(store: Store, run_key: str) -> list[KeptCheckpoint]:
    """The committed checkpoints, by step. One with a damaged manifest is omitted, as resuming skips it too."""
    reasons: dict[str, list[str]] = {}
    for pointer in [LAST, BEST, *(f"{EPOCHS}/{name}" for name in store.names(f"{run_key}/{EPOCHS}"))]:
        if target := read_pointer(store, f"{run_key}/{pointer}"):
            epoch = re.match(rf"{EPOCHS}/epoch-(\d+)-", pointer)
            reason = f"epoch {int(epoch[1])}" if epoch else pointer.removeprefix("checkpoint-")
            reasons.setdefault(target.checkpoint, []).append(reason)
    found = []
    for folder in store.names(f"{run_key}/{CHECKPOINTS}"):
        name = f"{CHECKPOINTS}/{folder}"
        try:
            manifest = read_manifest(store, f"{run_key}/{name}", CHECKPOINT_KIND)
        except ArtifactError:
            continue
        if manifest is not None:
            step, scores = manifest.details["step"], manifest.details["scores"] or {}
            found.append(KeptCheckpoint(name, step, scores, manifest.size(), tuple(reasons.get(name, ()))))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


LINEAGE_FORMAT = 2
EVALUATED = {"recipe", "data", "predictions", "clean_of"}
"""Optional fields of an evaluation about the data that it read and the files that it wrote."""

SINGLE = {kind: each.role for kind, each in DATA_KINDS.items() if each.role}
"""Inputs of which a run has at most one: key in the record, and displayed name."""

DECIDED = ("curation", "documents", "table", "compared", "kept_out")
TOKENIZED = ("vocab_size", "trained_on", "taken_from")
"""Fields of the manifests of decisions, and of a tokenizer, that the record copies."""


def make_lineage(store: Store, facts: RunFacts) -> dict[str, Any]:
    """The contents of lineage.json without the report's own part. Reads each corpus's list of source files."""
    return {
        "format": LINEAGE_FORMAT,
        "run": {
            "key": facts.key,
            "fingerprint": facts.config["fingerprint"],
            "config": f"{facts.key}/{CONFIG}",
            "config_sha256": facts.config_sha256,
        },
        **_describe_origins(store, facts),
        "environment": facts.environment,
        "model": {
            "key": f"{facts.key}/{FINAL}",
            "fingerprint": facts.final.fingerprint,
            "created": facts.final.created,
            "files": describe_files(facts.final.files),
        },
        "evaluation": _describe_evaluation(facts),
    }


def describe_files(files: list[FileRecord]) -> list[dict[str, Any]]:
    """Names, sizes in bytes and checksums of files."""
    return [record.model_dump() for record in files]


def _describe_origins(store: Store, facts: RunFacts) -> dict[str, Any]:
    """The input data, and the pretrained model if config.json records where it was found."""
    origins: dict[str, Any] = {}
    if shards := facts.made_from(SHARDS):
        origins["shards"] = [_describe_shards(store, source) for source in shards]
    if decisions := facts.made_from(DECISIONS):
        origins["decisions"] = [_describe(source, DECIDED) for source in decisions]
    for tokenizer in facts.made_from(TOKENIZER):  # the pieces that it was trained on, or the path that it came from
        origins["tokenizer"] = {**_describe(tokenizer, TOKENIZED), **_name_decisions(tokenizer)}
    for name, kind in (("encoded", ENCODED), ("reference", REFERENCE_KIND)):
        for source in facts.made_from(kind):
            files = describe_files(source.manifest.files)
            origins[name] = {**_describe(source), "details": source.manifest.details, "files": files}
    if facts.config.get("start"):
        model = facts.config["identity"]["model"]
        files = model.get("pretrained", model)  # in pretraining it is beside the settings of a new model
        origins["pretrained"] = {"name": facts.job["model"]["pretrained"], **facts.config["start"], "files": files}
    return origins


def _describe(source: Source, fields: Iterable[str] = ()) -> dict[str, Any]:
    """An artifact, with some fields of its manifest's details."""
    manifest = source.manifest
    return {
        "key": source.key,
        "fingerprint": manifest.fingerprint,
        "manifest_sha256": source.sha256,
        "created": manifest.created,
        "headrace": manifest.headrace,
        **{field: manifest.details.get(field) for field in fields},
    }


def _describe_shards(store: Store, source: Source) -> dict[str, Any]:
    """A corpus, with a reference to the list of its raw files, which holds each file's path and checksum."""
    key = f"{source.key}/{SOURCES}"
    listed = source.manifest.digests().get(SOURCES)
    pieces = read_listed(store, key, listed) or []
    return {
        **_describe(source, ("corpus", "totals")),
        "source_files": len({piece["path"] for piece in pieces}),
        "source_pieces": len(pieces),
        "sources": key,
        "sources_sha256": listed,
        **_name_decisions(source),
    }


def _name_decisions(source: Source) -> dict[str, Any]:
    """The curation decisions about an artifact's text, if there are any."""
    keys = decisions_behind(source.manifest)
    return {"decisions": keys} if keys else {}


def _describe_evaluation(facts: RunFacts) -> dict[str, Any] | None:
    """The evaluation of the final model, and what it read and wrote."""
    if facts.evaluation is None:
        return None
    described: dict[str, Any] = facts.evaluation.model_dump(mode="json", include=EVALUATED)
    if facts.evaluation.harness is not None:
        described["harness"] = {"key": f"{facts.key}/{HARNESS}", "fingerprint": facts.evaluation.harness.fingerprint}
    return {"key": f"{facts.key}/{EVALUATION}", "fingerprint": facts.evaluation.fingerprint, **described}
