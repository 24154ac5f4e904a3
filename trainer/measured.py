"""What was measured already: the identity of an evaluation, and finding one made of the same; free of heavy imports."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import EvaluateJob
from trainer.errors import ConfigError
from trainer.finetune_config import FinetuneJob
from trainer.manifest import digest_file, fingerprint, read_manifest
from trainer.measures import metric_identity
from trainer.places import CONFIG, EVALUATION, FINAL, FINAL_KIND
from trainer.pretrained import Checkpoint, find_model
from trainer.results import Evaluation, FinetuneEvaluation
from trainer.storage import Store

log = logging.getLogger(__name__)

FORMAT = 1


class Measurement(NamedTuple):
    """What is evaluated on which shards, the evaluation's fingerprint, and the key of its result."""

    model: Checkpoint
    shards: list[str]
    context: int
    fingerprint: str
    key: str


def identify_evaluation(store: Store, job: EvaluateJob) -> Measurement:
    """The evaluation that a job makes, made already or not.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` if it is not known what to evaluate on.
    """
    found = find_model(store, job.checkpoint)
    shards, context = _what_to_read(store, job, found)
    name = fingerprint(
        [FORMAT, found.files, shards, context, job.precision, job.evaluation.model_dump(exclude={"during_training"})]
    )
    return Measurement(found, shards, context, name, _result_key(store, job, found, name))


def find_evaluation(store: Store, wanted: Measurement) -> Evaluation | None:
    """The evaluation already made of the same."""
    earlier = store.read_json(wanted.key)
    if earlier is None or earlier["fingerprint"] != wanted.fingerprint:
        return None
    return Evaluation(**{**earlier, "reused": True})


class Scoring(NamedTuple):
    """The model that is scored, the key of the encoded set, the fingerprint of the one on the other, and the result's key."""

    model: Checkpoint
    encoded: str
    fingerprint: str
    key: str


def identify_scoring(store: Store, job: FinetuneJob, run: str) -> Scoring:
    """The scoring of a run's final model, made already or not. Raises `ArtifactError` if that is missing or damaged."""
    found = find_model(store, f"{run}/{FINAL}")
    manifest = read_manifest(store, f"{run}/{FINAL}", FINAL_KIND)
    assert manifest is not None
    encoded: str = manifest.details["encoded"]
    metrics = job.evaluation.metrics and [metric_identity(name) for name in job.evaluation.metrics]
    name = fingerprint([FORMAT, found.files, encoded, job.training.precision, metrics])
    return Scoring(found, encoded, name, f"{run}/{EVALUATION}")


def find_scoring(store: Store, wanted: Scoring) -> FinetuneEvaluation | None:
    """The scoring already made of the same, if its predictions are as it left them."""
    earlier = store.read_json(wanted.key)
    if earlier is None or earlier["fingerprint"] != wanted.fingerprint:
        return None
    for file, sha256 in earlier["predictions"].items():
        try:
            if digest_file(store.fetch(file)).sha256 == sha256:
                continue
        except FileNotFoundError:
            pass
        log.warning("%s is missing or changed: evaluating again", store.path(file))
        return None
    return FinetuneEvaluation(**{**earlier, "reused": True})


def _what_to_read(store: Store, job: EvaluateJob, found: Checkpoint) -> tuple[list[str], int]:
    """The shard sets and the window length: as given, else those of the run that made the checkpoint."""
    run: Any = None
    if found.key is not None and found.key.startswith("runs/"):
        run = store.read_json(f"runs/{found.key.split('/')[1]}/{CONFIG}")
    shards = job.shards or (run and [ref["key"] for ref in run["data"]["shards"]])
    context = job.context or (run and run["job"]["training"]["context"])
    if not shards or not context:
        raise ConfigError(
            f"{job.checkpoint} is not of a run in this store: say which `shards` to evaluate on, and the `context`"
        )
    return shards, context


def _result_key(store: Store, job: EvaluateJob, found: Checkpoint, digest: str) -> str:
    """The run's own eval.json for its final model measured as its job says, else a file of its own."""
    if found.key is not None and found.key.endswith(f"/{FINAL}") and job.shards is None and job.context is None:
        run = found.key.removesuffix(f"/{FINAL}")
        settings = store.read_json(f"{run}/{CONFIG}")["job"]
        own = settings["evaluation"] == job.evaluation.model_dump(mode="json")
        if own and settings["training"]["precision"] == job.precision:
            return f"{run}/{EVALUATION}"
    return f"evaluations/{Path(job.checkpoint).name}-{digest}.json"
