"""Measure a model of any kind, and reuse an existing result with the same fingerprint.

    runs/X/eval.json                  a run's own final model, measured as its job says
    runs/X/harness.json               lm-eval's figures of that model
    evaluations/CHECKPOINT-FP.json    any other measurement of a checkpoint

The fingerprint covers everything that determines the figures: model, data and recipe. A measurement is to a result what
a `Step` is to an artifact. This module imports no heavy libraries.
"""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.common.errors import ArtifactError, RunError
from trainer.common.progress import Progress
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob
from trainer.config.runs import RunJob
from trainer.models.pretrained import Checkpoint
from trainer.records.evaluations import FORMAT, Result
from trainer.records.fields import list_changes
from trainer.records.sealed import read_sealed, require_sealed, write_sealed
from trainer.records.shapes import remedy_of
from trainer.store.artifact_files import explaining_removal
from trainer.store.manifest import digest_file, fingerprint
from trainer.store.names import CONFIG, EVALUATION, FINAL, HARNESS
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.training.runtime import Runtime

log = logging.getLogger(__name__)

PREDICTED = ("validation", "test")
"""The splits for which predictions are written, if they exist."""


@dataclass(frozen=True)
class Measurement:
    """A model and the way to measure it.

    `recipe` holds, as JSON, everything that determines the figures besides the model and `data`. `precision`, `device`
    and `deterministic` are those of the runtime.
    """

    model: Checkpoint
    checkpoint: str
    """The name by which the job refers to the model."""
    recipe: Mapping[str, Any]
    settings: Any
    """Further values that the kind needs to measure it."""
    data: tuple[str, ...] = ()
    """The keys of the artifacts that are read."""
    place: str | None = None
    """The key of the result, if it is not a file in evaluations/."""
    elsewhere: str | None = None
    """Another key at which the result may exist."""
    run: str | None = None
    """The run whose encoded set is used; its test split may have changed since training."""
    predictions: tuple[str, ...] | None = ()
    """The keys of the prediction files to write; None if they are not known because the data is missing."""
    precision: str = "fp32"
    device: str = "auto"
    deterministic: bool = False
    suffix: str = ""
    """Follows the checkpoint's name in the name of a file in evaluations/."""

    @property
    def whole_recipe(self) -> dict[str, Any]:
        """Everything that determines the figures."""
        return {"format": FORMAT, "model": fingerprint(self.model.files), "data": list(self.data), **self.recipe}

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the figures."""
        return fingerprint(self.whole_recipe)

    @property
    def key(self) -> str:
        """The key at which the result is written, the same for each of the model's names."""
        model = (self.model.key or self.checkpoint).removesuffix(f"/{FINAL}")
        return self.place or f"evaluations/{Path(model).name}{self.suffix}-{self.fingerprint}.json"

    @property
    def is_own(self) -> bool:
        """Whether it measures a run's final model as the run's own job says."""
        return self.key.endswith(f"/{EVALUATION}")

    def result(self, **measured: Any) -> Result:
        """The result with these measured values."""
        return Result(
            format=FORMAT,
            fingerprint=self.fingerprint,
            recipe=self.whole_recipe,
            key=self.key,
            checkpoint=self.checkpoint,
            model=None if self.is_own else self.model.key,
            data=list(self.data),
            **measured,
        )


def harness_job(job: RunJob, run: str) -> EvaluateJob | None:
    """The job by which lm-eval measures the final model of a run; None if the run's job lists no tasks."""
    if job.harness is None:
        return None
    batch = job.evaluation.model_dump(include={"batch"})
    return make_evaluation_job(job, run, EvaluationConfig(**batch, harness=job.harness.of_finished()))


def make_evaluation_job(job: RunJob, run: str, evaluation: EvaluationConfig) -> EvaluateJob:
    """The job that measures a run's final model with this evaluation, on the device and engine of the run's own job."""
    return EvaluateJob(
        store=job.store,
        checkpoint=f"{run}/{FINAL}",
        precision=job.training.precision,
        device=job.training.device,
        sharding=job.training.sharding,
        cpu_offload=job.training.cpu_offload,
        evaluation=evaluation,
        engine=job.engine,
    )


def find_result(store: Store, measurement: Measurement) -> Result | None:
    """The existing result of the same measurement, if it and its predictions are unchanged.

    A damaged record is logged as a warning and measured again.
    """
    for key in filter(None, (measurement.key, measurement.elsewhere)):
        found = intact_result(store, key)
        if (
            found is not None
            and found.fingerprint == measurement.fingerprint
            and _has_predictions(store, measurement, found)
        ):
            return found.model_copy(update={"reused": True})
    return None


Measure = Callable[[Measurement, Progress, "Runtime"], Result]
"""Computes the result of a measurement. Called by every rank."""


def evaluate(store: Store, measurement: Measurement, measure: Measure, progress: Progress) -> Result:
    """Measure a model and write the result, or return an existing result of the same measurement. Called by every rank.

    Raises `RunError` if the run was requested with another test split in the meantime, and errors of the measurement.
    """
    from trainer.training.rank_watchdog import explaining_lost_ranks
    from trainer.training.runtime import start_runtime

    with explaining_lost_ranks():
        check_asked(store, measurement)
        runtime = start_runtime(measurement.precision, measurement.device, measurement.deterministic)
        if (earlier := runtime.on_first(lambda: find_result(store, measurement))) is not None:
            return earlier
        if measurement.is_own:
            runtime.on_first(lambda: _log_replaced(store, measurement))
        with explaining_removal(store, measurement.model.key):
            result = measure(measurement, progress, runtime)
        if result.by != "corpus" or math.isfinite(result.judged.figures["loss"]):
            runtime.on_first(lambda: record(store, measurement, result))
        return result


def intact_result(store: Store, key: str) -> Result | None:
    """The result in a record; None if it is missing, or damaged, which is logged as a warning."""
    try:
        return _read(store, key)
    except ArtifactError as error:
        log.warning("%s: measuring again", error)
        return None


def read_result(store: Store, run: str, config: Mapping[str, Any]) -> Result | None:
    """The result for a run's final model, including lm-eval's; None if there is none.

    A result on another encoded set than the one in `config`, the caller's copy of config.json, is ignored: either the
    run has since been requested with another test split, or a process that measured an older split finished late.
    So are lm-eval's results of other weights: the final model may have been published again in another form since.
    Raises `ArtifactError` if a record is damaged.
    """
    found = _read(store, f"{run}/{EVALUATION}")
    if found is None or (found.by == "split" and found.data != [encoded_in(config)]):
        return None
    harness = _read(store, f"{run}/{HARNESS}")
    if harness is None or harness.recipe.get("model") != found.recipe.get("model"):
        return found
    return found.beside(harness)


def encoded_in(config: Mapping[str, Any]) -> str | None:
    """The key of the encoded set in a run's config.json, with the latest requested test split; None for shards."""
    key: str | None = config.get("data", {}).get("key")
    return key


def encoded_of(store: Store, run: str) -> str:
    """The key of a fine-tuning run's encoded set; raises `ArtifactError` if its config.json has none."""
    place = f"{run}/{CONFIG}"
    key = encoded_in(require_sealed(store, place))
    if key is None:
        raise ArtifactError(f"{store.path(place)} is damaged: it has no encoded data set; {remedy_of(place)}")
    return key


def predictions_key(run: str, split: str) -> str:
    """The key of a split's predictions."""
    return f"{run}/predictions/{split}.jsonl"


def _read(store: Store, key: str) -> Result | None:
    values = read_sealed(store, key)
    return None if values is None else Result(**values)


def check_asked(store: Store, measurement: Measurement) -> None:
    """Raise `RunError` if the run was requested with another test split since this measurement was prepared."""
    if measurement.run is not None and (now := encoded_of(store, measurement.run)) not in measurement.data:
        raise RunError(
            f"{store.path(measurement.run)} was requested with another test split ({now}) while this job measured it "
            f"on {', '.join(measurement.data)}; start the command again to replace those figures"
        )


def _has_predictions(store: Store, measurement: Measurement, found: Result) -> bool:
    """Whether the result's predictions are the wanted ones and unchanged."""
    if measurement.predictions is not None and sorted(found.predictions) != sorted(measurement.predictions):
        log.warning(
            "%s lists other predictions than %s: measuring again",
            store.path(found.key),
            ", ".join(measurement.predictions),
        )
        return False
    for file, sha256 in found.predictions.items():
        with suppress(FileNotFoundError, IsADirectoryError):
            if digest_file(store.fetch(file)).sha256 == sha256:
                continue
        log.warning("%s is missing or changed: measuring again", store.path(file))
        return False
    return True


def _log_replaced(store: Store, measurement: Measurement) -> None:
    """Log that figures and predictions will be replaced: a warning if their test split differs, else an info."""
    with suppress(ArtifactError):  # a damaged record was already reported
        before = _read(store, measurement.key)
        if before is not None and before.by == "split" and tuple(before.data) != measurement.data:
            log.warning(
                "%s is requested with another test split: %s, measured on %s, are replaced by those measured on %s; to "
                "restore the former ones, run the job with the former test files",
                store.path(measurement.key.rpartition("/")[0]),
                ", ".join([measurement.key, *sorted(before.predictions)]), *before.data, *measurement.data,
            )  # fmt: skip
        elif before is not None and (changes := list_changes(before.recipe, measurement.whole_recipe)):
            log.info("%s was measured differently and is replaced: %s", store.path(measurement.key), "; ".join(changes))


def record(store: Store, measurement: Measurement, result: Result) -> None:
    """Write the result of a measurement; raises `RunError` as `evaluate` does."""
    # A record is always written if predictions were: with another test split it is ignored, and the next measurement
    # replaces both.
    if measurement.is_own and not result.predictions:
        check_asked(store, measurement)
    write_sealed(store, measurement.key, result.recorded())
