"""Measuring a model, of whatever kind: what decides its figures names them, so that what was measured of the same is
found and not measured again.

    runs/X/eval.json                  of a run's own final model, measured as its job says
    runs/X/harness.json               what lm-eval measured of it
    evaluations/CHECKPOINT-FP.json    of any checkpoint, measured in another way

A measurement is to a result what a `Step` is to an artifact: a recipe, and how it is made. Free of heavy imports.
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
from trainer.config.chat import ConversationsJob
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.config.runs import RunJob
from trainer.models.pretrained import Checkpoint
from trainer.records.evaluations import FORMAT, Result
from trainer.records.fields import tell_changes
from trainer.records.sealed import read_sealed, require_sealed, write_sealed
from trainer.records.shapes import remedy_of
from trainer.store.manifest import digest_file, fingerprint
from trainer.store.names import CONFIG, EVALUATION, FINAL, HARNESS
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.training.runtime import Runtime

log = logging.getLogger(__name__)

PREDICTED = ("validation", "test")
"""The splits that are predicted, where there are some."""


@dataclass(frozen=True)
class Measurement:
    """A model, measured in one way.

    `recipe` is all that decides the figures beside the model and the `data` that is read, as JSON. `precision`,
    `device` and `deterministic` are those of the runtime that it is measured in.
    """

    model: Checkpoint
    checkpoint: str
    """The name under which the model was asked for."""
    recipe: Mapping[str, Any]
    settings: Any
    """What its kind needs to know of it to measure it."""
    data: tuple[str, ...] = ()
    """The keys of the artifacts that are read."""
    place: str | None = None
    """Where the result is written, if not in a file of its own."""
    elsewhere: str | None = None
    """Where the result may stand as well."""
    run: str | None = None
    """The run on whose encoded set it is measured: its test split may be another one than it was trained beside."""
    predictions: tuple[str, ...] | None = ()
    """The keys of the files of predictions that are written; None if that is not known, as the data is gone."""
    precision: str = "fp32"
    device: str = "auto"
    deterministic: bool = False
    suffix: str = ""
    """What the name of a file of its own has beside the checkpoint's."""

    @property
    def whole_recipe(self) -> dict[str, Any]:
        """All that decides the figures."""
        return {"format": FORMAT, "model": fingerprint(self.model.files), "data": list(self.data), **self.recipe}

    @property
    def fingerprint(self) -> str:
        """The name of the figures."""
        return fingerprint(self.whole_recipe)

    @property
    def key(self) -> str:
        """Where the result is written: the same by whichever of its names the model was asked for."""
        model = (self.model.key or self.checkpoint).removesuffix(f"/{FINAL}")
        return self.place or f"evaluations/{Path(model).name}{self.suffix}-{self.fingerprint}.json"

    @property
    def is_own(self) -> bool:
        """Whether it is that of a run's final model as its job says."""
        return self.key.endswith(f"/{EVALUATION}")

    def result(self, **measured: Any) -> Result:
        """The result, of what was measured."""
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
    """How lm-eval measures the final model of a run, if the job names tasks."""
    if not isinstance(job, PipelineJob | ConversationsJob) or job.evaluation.harness is None:
        return None
    asked = EvaluationConfig(batch=job.evaluation.batch, harness=job.evaluation.harness.of_finished())
    return ask_of_run(job, run, asked)


def ask_of_run(job: PipelineJob | ConversationsJob, run: str, evaluation: EvaluationConfig) -> EvaluateJob:
    """The job that measures a run's final model with this evaluation, with the device, precision and engine of the
    run's own job.
    """
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


def find_result(store: Store, wanted: Measurement) -> Result | None:
    """The existing result of the same measurement, if it and its predictions are unchanged.

    A damaged record is logged as a warning and measured again.
    """
    for key in filter(None, (wanted.key, wanted.elsewhere)):
        found = intact_result(store, key)
        if found is not None and found.fingerprint == wanted.fingerprint and _has_predictions(store, wanted, found):
            return found.model_copy(update={"reused": True})
    return None


Measure = Callable[[Measurement, Progress, "Runtime"], Result]
"""Makes the result of a measurement. Called by every rank."""


def evaluate(store: Store, wanted: Measurement, measure: Measure, progress: Progress) -> Result:
    """Measure a model and record it; what was measured of the same is reused. Called by every rank.

    Raises `RunError` if its run was asked for with another test split in the meantime, and what the measurement
    raises.
    """
    from trainer.training.rank_watchdog import explaining_lost_ranks
    from trainer.training.runtime import start_runtime

    with explaining_lost_ranks():
        check_asked(store, wanted)
        runtime = start_runtime(wanted.precision, wanted.device, wanted.deterministic)
        if (earlier := runtime.on_first(lambda: find_result(store, wanted))) is not None:
            return earlier
        if wanted.is_own:
            runtime.on_first(lambda: _tell_replaced(store, wanted))
        result = measure(wanted, progress, runtime)
        if result.by != "corpus" or math.isfinite(result.judged.figures["loss"]):
            runtime.on_first(lambda: _record(store, wanted, result))
        return result


def intact_result(store: Store, key: str) -> Result | None:
    """The result that a record holds; None if there is none, or it is damaged, which a warning tells."""
    try:
        return _read(store, key)
    except ArtifactError as error:
        log.warning("%s: measuring again", error)
        return None


def read_result(store: Store, run: str, config: Mapping[str, Any]) -> Result | None:
    """What was measured of a run's final model, beside it what lm-eval measured; None if there is nothing.

    A result on another encoded set than the one in `config`, the caller's copy of config.json, is ignored: either the
    run has since been requested with another test split, or a process that measured an older split finished late.
    Raises `ArtifactError` if a record is damaged.
    """
    found = _read(store, f"{run}/{EVALUATION}")
    if found is None or (found.by == "split" and found.data != [encoded_in(config)]):
        return None
    harness = _read(store, f"{run}/{HARNESS}")
    return found if harness is None else found.beside(harness)


def encoded_in(config: Mapping[str, Any]) -> str | None:
    """The key of the encoded set that a run's config.json names: with the test split that it was last asked for with;
    None of a run on shards.
    """
    key: str | None = config.get("data", {}).get("key")
    return key


def encoded_of(store: Store, run: str) -> str:
    """The key of the encoded set of a run that tunes a model. Raises `ArtifactError` if its config.json names none."""
    place = f"{run}/{CONFIG}"
    key = encoded_in(require_sealed(store, place))
    if key is None:
        raise ArtifactError(f"{store.path(place)} is damaged: it names no encoded data set; {remedy_of(place)}")
    return key


def predictions_key(run: str, split: str) -> str:
    """Where the predictions of a split are."""
    return f"{run}/predictions/{split}.jsonl"


def _read(store: Store, key: str) -> Result | None:
    values = read_sealed(store, key)
    return None if values is None else Result(**values)


def check_asked(store: Store, wanted: Measurement) -> None:
    """Raise `RunError` if a run was asked for with another test split since what is measured was prepared."""
    if wanted.run is not None and (now := encoded_of(store, wanted.run)) not in wanted.data:
        raise RunError(
            f"{store.path(wanted.run)} was asked for with another test split ({now}) while this job measures it on "
            f"{', '.join(wanted.data)}; start the command again to have this one's figures in its place"
        )


def _has_predictions(store: Store, wanted: Measurement, found: Result) -> bool:
    """Whether the predictions of a result are those that are wanted, and as they were left."""
    if wanted.predictions is not None and sorted(found.predictions) != sorted(wanted.predictions):
        log.warning(
            "%s names other predictions than %s: measuring again", store.path(found.key), ", ".join(wanted.predictions)
        )
        return False
    for file, sha256 in found.predictions.items():
        with suppress(FileNotFoundError, IsADirectoryError):
            if digest_file(store.fetch(file)).sha256 == sha256:
                continue
        log.warning("%s is missing or changed: measuring again", store.path(file))
        return False
    return True


def _tell_replaced(store: Store, wanted: Measurement) -> None:
    """Warn of the figures and predictions of another test split that a measurement is about to replace, and tell of
    those that were measured otherwise.
    """
    with suppress(ArtifactError):  # of a damaged record there was a word already
        before = _read(store, wanted.key)
        if before is not None and before.by == "split" and tuple(before.data) != wanted.data:
            log.warning(
                "%s is asked for with another test split: %s, which are of %s, are replaced by those of %s; to have "
                "the former again, run the job with the former test files",
                store.path(wanted.key.rpartition("/")[0]),
                ", ".join([wanted.key, *sorted(before.predictions)]), *before.data, *wanted.data,
            )  # fmt: skip
        elif before is not None and (changes := tell_changes(before.recipe, wanted.whole_recipe)):
            log.info("%s was measured otherwise, and is replaced: %s", store.path(wanted.key), "; ".join(changes))


def _record(store: Store, wanted: Measurement, result: Result) -> None:
    # If predictions were written, their record is always written too: it is ignored for another test split, and the
    # next measurement replaces both.
    if wanted.is_own and not result.predictions:
        check_asked(store, wanted)
    write_sealed(store, wanted.key, result.recorded())
