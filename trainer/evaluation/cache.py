"""What was measured already: the identity of an evaluation, and finding one made of the same; free of heavy imports."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from trainer.common.errors import ArtifactError, ConfigError, in_one_line
from trainer.config.chat import ChatJob
from trainer.config.evaluation import PREFIX, EvaluationConfig, without_harness
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.config.runs import PromotionConfig
from trainer.config.training import MaskingConfig, masks_documents
from trainer.evaluation.metrics.measures import metric_identity
from trainer.evaluation.of_runs import encoded_of
from trainer.models.pretrained import MASKED, Checkpoint, find_model, read_object
from trainer.records.evaluations import ChatEvaluation, Evaluation, FinetuneEvaluation
from trainer.records.run_kinds import CHAT, run_kind
from trainer.records.sealed import read_sealed, require_sealed
from trainer.store.manifest import digest_file, fingerprint, read_manifest
from trainer.store.names import CONFIG, EVALUATION, FINAL
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 3
ENCODED = "encoded"
PREDICTED = ("validation", "test")
"""The splits that are predicted, where there are some."""

Found = TypeVar("Found", Evaluation, FinetuneEvaluation, ChatEvaluation)


class Measurement(NamedTuple):
    """What is evaluated on which shards, the evaluation's fingerprint, and the key of its result."""

    model: Checkpoint
    shards: list[str]
    context: int
    fingerprint: str
    key: str
    masking: MaskingConfig | None
    """How tokens are hidden; None for a model that predicts each next token."""
    document_mask: bool
    """Whether attention stays within a document, as it did in training."""


def identify_evaluation(store: Store, job: EvaluateJob) -> Measurement:
    """The evaluation that a job makes, made already or not.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` if it is not known what to evaluate
    on.
    """
    found = find_model(store, job.checkpoint)
    shards, context, masking, document_mask = _what_to_read(store, job, found)
    corpora = [key.rsplit("-", 1)[0] for key in shards]
    if twice := sorted({corpus for corpus in corpora if corpora.count(corpus) > 1}):
        raise ConfigError(f"shards names two sets of {twice[0]}; figures are by corpus, so measure them one at a time")
    settings = {name: value for name, value in without_harness(job.evaluation).items() if name != "during_training"}
    measured = [FORMAT, found.files, shards, context, job.precision, settings]
    special = [*([masking.model_dump()] if masking else []), *(["document_mask"] if document_mask else [])]
    name = fingerprint([*measured, *special])
    return Measurement(found, shards, context, name, _result_key(store, job, found, name), masking, document_mask)


def find_evaluation(store: Store, wanted: Measurement) -> Evaluation | None:
    """The evaluation already made of the same; a damaged one is to be made anew, which a warning tells."""
    return find_alike(store, wanted, Evaluation)


class Scoring(NamedTuple):
    """The model that is scored, the key of the encoded set, the fingerprint of the one on the other, and the result's
    key.
    """

    model: Checkpoint
    encoded: str
    fingerprint: str
    key: str


def identify_scoring(
    store: Store, job: FinetuneJob, run: str, other: str | None = None, encoded: str | None = None
) -> Scoring:
    """The scoring of a run's final model, made already or not, or of that of an `other` run on this one's data.

    `encoded` is the key of the set that the job prepared, by default of the one that the run was last asked for with.
    Raises `ArtifactError` if the model is missing or damaged, or it is not known what the run's data is.
    """
    return locate_scoring(store, run, other, encoded, partial(scoring_fingerprint, job))


def locate_scoring(
    store: Store, run: str, other: str | None, encoded: str | None, name_of: Callable[[Checkpoint, str], str]
) -> Scoring:
    """The same, given what names the figures of a model on an encoded set. Raises as `identify_scoring` does."""
    found = find_model(store, f"{other or run}/{FINAL}")
    encoded = encoded or encoded_of(store, run)
    name = name_of(found, encoded)
    return Scoring(found, encoded, name, f"{run}/{EVALUATION}" if other is None else f"evaluations/{FINAL}-{name}.json")


def scoring_fingerprint(job: FinetuneJob, found: Checkpoint, encoded: str) -> str:
    """What names the figures of a model on an encoded set."""
    metrics = job.evaluation.metrics and [metric_identity(name) for name in job.evaluation.metrics]
    options = [metrics, job.evaluation.positive_class]
    return fingerprint([FORMAT, found.files, encoded, job.training.precision, options])


def find_scoring(store: Store, wanted: Scoring) -> FinetuneEvaluation | None:
    """The scoring already made of the same, if that and its predictions are as it left them."""
    earlier = find_alike(store, wanted, FinetuneEvaluation)
    if earlier is None:
        return None
    manifest = read_manifest(store, wanted.encoded, ENCODED)
    own = wanted.key.endswith(f"/{EVALUATION}")  # predictions are written of a run's own model alone
    splits = [split for split in PREDICTED if own and manifest is not None and split in manifest.details["splits"]]
    expected = [predictions_key(wanted.key.rpartition("/")[0], split) for split in splits]
    if sorted(earlier.predictions) != sorted(expected):
        log.warning("%s names other predictions than %s: evaluating again", store.path(wanted.key), ", ".join(expected))
        return None
    for file, sha256 in earlier.predictions.items():
        try:
            if digest_file(store.fetch(file)).sha256 == sha256:
                continue
        except (FileNotFoundError, IsADirectoryError):
            pass
        log.warning("%s is missing or changed: evaluating again", store.path(file))
        return None
    return earlier


def tell_replaced(store: Store, wanted: Scoring) -> None:
    """Warn of the figures and predictions of another test split that a scoring is about to replace."""
    with suppress(ArtifactError):  # of a damaged record there was a word already
        before = read_sealed(store, wanted.key)
        if before is not None and (former := before.get("encoded")) != wanted.encoded:
            log.warning(
                "%s is asked for with another test split: %s, which are of %s, are replaced by those of %s; to have "
                "the former again, run the job with the former test files",
                store.path(wanted.key.rpartition("/")[0]),
                ", ".join([wanted.key, *sorted(before.get("predictions", ()))]), former, wanted.encoded,
            )  # fmt: skip


def predictions_key(run: str, split: str) -> str:
    """Where the predictions of a split are."""
    return f"{run}/predictions/{split}.jsonl"


def find_alike(store: Store, wanted: Measurement | Scoring, kind: type[Found]) -> Found | None:
    """The record under the key of what is wanted, if it is intact and was made of the same."""
    earlier = intact_evaluation(store, wanted.key, kind)
    if earlier is None or earlier.fingerprint != wanted.fingerprint:
        return None
    return earlier.model_copy(update={"reused": True})


def intact_evaluation(store: Store, key: str, kind: type[Found]) -> Found | None:
    """An evaluation's record, or None if there is none that can be used."""
    try:
        values = read_sealed(store, key)
        return None if values is None else kind(**values)
    except ArtifactError as error:
        log.warning("%s: evaluating again", error)
    except ValidationError as error:
        log.warning("%s is no evaluation (%s): evaluating again", store.path(key), in_one_line(error))
    return None


def _what_to_read(
    store: Store, job: EvaluateJob, found: Checkpoint
) -> tuple[list[str], int, MaskingConfig | None, bool]:
    """The shard sets and the window length, as given, else those of the run that made the checkpoint; and its masks."""
    run: Any = None
    if found.key is not None and found.key.startswith("runs/"):
        run = read_sealed(store, f"runs/{found.key.split('/')[1]}/{CONFIG}")
    shards = job.shards or (run and [ref["key"] for ref in run["data"].get("shards", ())])
    context = job.context or (run and run["job"]["training"].get("context"))
    if run and run_kind(run) is CHAT and not (shards and context):
        raise ConfigError(
            f"{job.checkpoint} is of a run on conversations: how well it answers those that it was not trained on "
            "stands in that run's eval.json. To measure it on held-out text, say which `shards`, and the `context`"
        )
    if not shards or not context:
        raise ConfigError(
            f"{job.checkpoint} is not of a run in this store: say which `shards` to evaluate on, and the `context`"
        )
    return shards, context, _masking_of(run, found), _tells_documents_apart(run)


def _tells_documents_apart(run: Any) -> bool:
    """Whether the run that made a checkpoint kept attention within documents; a model of no run reads windows as one
    text.
    """
    training = run["job"]["training"] if run else {}
    return masks_documents(training.get("packing"), training.get("document_mask"))


def _masking_of(run: Any, found: Checkpoint) -> MaskingConfig | None:
    """How the run that made a checkpoint hides tokens; a masked model of no run is measured with the usual shares."""
    names = read_object(Path(found.folder, "config.json")).get("architectures") or []
    if not any(str(name).endswith(MASKED) for name in names):
        return None
    settings = run["job"]["training"].get("masking") if run else None
    return MaskingConfig(**(settings or {}))


def _result_key(store: Store, job: EvaluateJob, found: Checkpoint, digest: str) -> str:
    """The run's own eval.json for its final model measured as its job says, else a file of its own."""
    if found.key is not None and found.key.endswith(f"/{FINAL}") and job.shards is None and job.context is None:
        run = found.key.removesuffix(f"/{FINAL}")
        settings = require_sealed(store, f"{run}/{CONFIG}")["job"]
        evaluated = {name: value for name, value in settings["evaluation"].items() if name != "harness"}
        if evaluated == without_harness(job.evaluation) and settings["training"]["precision"] == job.precision:
            return f"{run}/{EVALUATION}"
    return f"evaluations/{Path(job.checkpoint).name}-{digest}.json"


ANSWERS_FORMAT = 2


def identify_answers(
    store: Store, job: ChatJob, run: str, other: str | None = None, encoded: str | None = None
) -> Scoring:
    """The measurement of a run's final model, made already or not, or of that of an `other` run on this one's data.

    Raises as `identify_scoring` does.
    """
    return locate_scoring(store, run, other, encoded, partial(_fingerprint, as_measured(job, other)))


def as_measured(job: ChatJob, other: str | None) -> ChatJob:
    """How a job measures a model: one of an `other` run, which it did not try, with each conversation in a window of
    its own.

    Families that carry a state on, or know no positions, would read those that share a window otherwise.
    """
    return job if other is None else job.model_copy(update={"data": job.data.model_copy(update={"packing": False})})


def find_answers(store: Store, wanted: Scoring) -> ChatEvaluation | None:
    """The measurement already made of the same."""
    return find_alike(store, wanted, ChatEvaluation)


def _fingerprint(job: ChatJob, found: Checkpoint, encoded: str) -> str:
    """What names the figures and the answers of a model on an encoded set."""
    asked = job.evaluation.model_dump(exclude={"batch", "harness"})
    return fingerprint([ANSWERS_FORMAT, found.files, encoded, job.training.precision, job.data.packing, asked])


def measurement(job: PipelineJob, run_key: str) -> EvaluateJob:
    """How a pipeline's own final model is measured."""
    return _of_run(job, run_key, job.evaluation)


def harness_measurement(job: ChatJob, run_key: str) -> EvaluateJob:
    """How lm-eval measures the final model of a run on conversations, or of one that is compared with it."""
    return _of_run(job, run_key, EvaluationConfig(batch=job.evaluation.batch, harness=job.evaluation.harness))


def _of_run(job: PipelineJob | ChatJob, run_key: str, evaluation: EvaluationConfig) -> EvaluateJob:
    return EvaluateJob(
        store=job.store,
        checkpoint=f"{run_key}/{FINAL}",
        precision=job.training.precision,
        device=job.training.device,
        sharding=job.training.sharding,
        cpu_offload=job.training.cpu_offload,
        evaluation=evaluation,
        engine=job.engine,
    )


def measurement_alike(measuring: EvaluateJob, run_key: str, evaluation: Evaluation) -> EvaluateJob:
    """How the final model of another run is measured on the same text, in the same way."""
    evaluated = measuring.evaluation.model_copy(update={"prompts": []})
    changes = {"shards": evaluation.shards, "context": evaluation.context, "evaluation": evaluated}
    return measuring.model_copy(update={"checkpoint": f"{run_key}/{FINAL}", **changes})


def gates_on_harness(gate: PromotionConfig | None) -> bool:
    """Whether a gate's figure is one of lm-eval, so that a champion must be measured by it too."""
    return gate is not None and gate.metric.startswith(PREFIX)
