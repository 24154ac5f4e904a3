"""Fine-tuning a pretrained model on labelled data to classify or to predict a number; no heavy imports."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainer.common.errors import ConfigError
from trainer.config.evaluation import EvaluationConfig
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.kinds import kind_of_run
from trainer.config.labelled import FinetuneJob, LabelledDataConfig
from trainer.config.schema import OF_CSV
from trainer.data.encoded import KIND as ENCODED
from trainer.data.raw_files import FORMAT_OF_ENDING, format_by_name
from trainer.data.splits import TRAIN, SplitSource, find_splits
from trainer.evaluation.measurement import PREDICTED, Measurement, predictions_key
from trainer.evaluation.metrics import OF_ONE_CLASS, file_of, greater_is_better, metric_identity, of_one_class
from trainer.kinds import tuning
from trainer.kinds.kind import Kind, LazyFunction, Planned, find_run_of
from trainer.kinds.tuning import identify_tuning, plan_splits
from trainer.models.pretrained import (
    architectures_of,
    class_names,
    classifies,
    find_model,
    outputs_depend_on_batch,
    read_object,
)
from trainer.store.manifest import ArtifactRef, read_manifest
from trainer.store.names import CONFIG, FINAL
from trainer.store.storage import Store
from trainer.training.identity import Run

log = logging.getLogger(__name__)


def identify(job: FinetuneJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded set identify."""
    return identify_tuning(job, data, {}, _selection(job))


def plan(job: FinetuneJob, data: ArtifactRef, ranks: int) -> Planned:
    """The plan of a run on labelled examples."""
    from trainer.data.labelled.encoding import describe_columns

    return plan_splits(job, data, ranks, describe_columns)


def _selection(job: FinetuneJob) -> dict[str, Any]:
    """What selects the best checkpoint: the figure, and the metrics that may compute it; a metric's file by content."""
    settings = job.evaluation
    figure = settings.best_by
    selection: dict[str, Any] = {
        "best_by": figure,
        "greater_is_better": greater_is_better(figure, settings.greater_is_better),
    }
    if figure == "loss":
        return selection
    metrics = settings.metrics
    if metrics is not None:  # a metric with the figure's name computes it, whatever figures the others return
        selection["metrics"] = [metric_identity(name) for name in ([figure] if figure in metrics else metrics)]
    if figure in of_one_class(list(OF_ONE_CLASS) if metrics is None else metrics):
        selection["positive_class"] = settings.positive_class
    return selection


def identify_own(
    store: Store, job: FinetuneJob, run: str, data: Sequence[str] | None, other: str | None = None
) -> Measurement:
    """`trainer.kinds.tuning.identify_own`, and for the run's own model the predictions of all splits but train."""
    measured = _in_batches(tuning.identify_own(store, job, run, data, other, evaluation=_measured_by(job)), job)
    if other is not None:
        return measured
    manifest = read_manifest(store, measured.data[0], ENCODED)
    splits = manifest.details["splits"] if manifest else ()
    predictions = tuple(predictions_key(run, split) for split in PREDICTED if split in splits) if manifest else None
    return replace(measured, predictions=predictions)


def _measured_by(job: FinetuneJob) -> dict[str, Any]:
    names = job.evaluation.metrics
    measured = {
        "metrics": names and [metric_identity(name) for name in names],
        "positive_class": job.evaluation.positive_class,
    }
    files = [file for file in map(file_of, names or ()) if file is not None]
    return {**measured, "files": files} if files else measured


def _in_batches(measured: Measurement, job: FinetuneJob) -> Measurement:
    """The measurement with the size of batches in its recipe, if the model's outputs depend on it."""
    if not outputs_depend_on_batch(measured.model.folder):
        return measured
    return replace(measured, recipe={**measured.recipe, "batch": job.evaluation.batch})


class NewFiles(NamedTuple):
    """New labelled files to measure a run's checkpoint on: the run's job with these files, and the model's folder."""

    job: FinetuneJob
    files: SplitSource
    folder: str


def identify_checkpoint(store: Store, job: EvaluateJob) -> Measurement | None:
    """The measurement of a fine-tuned run's checkpoint, on that run's own data or on new files; None if the checkpoint
    is not a classifier.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` for a classifier that does not belong
    to a run in this store, and for settings that only apply to language models.
    """
    found = find_model(store, job.checkpoint)
    of_run = find_run_of(store, found.key)
    if of_run is None and classifies(architectures_of(found.folder)):
        raise ConfigError(
            f"{job.checkpoint} is a classifier that does not belong to a run in this store, so its labelled data is "
            "unknown; give a checkpoint of a fine-tuning run, or predict new texts with `predict`"
        )
    if of_run is None or kind_of_run(of_run[1]).folder != __package__:
        if job.labelled is not None:
            raise ConfigError(f"labelled applies to classifiers only, but {job.checkpoint} is not one; remove labelled")
        return None
    run, config = of_run
    for setting in ("shards", "context"):
        if getattr(job, setting) is not None:
            raise ConfigError(
                f"{setting} applies to language models only, but {job.checkpoint} is a classifier, which is measured "
                f"on the labelled splits of its own run; remove {setting}"
            )
    log_unused(job)
    trained = validate_job(FinetuneJob, {**config["job"], "store": job.store}, store.path(f"{run}/{CONFIG}"))
    # Not validated as a training job: adapters and Muon do not allow sharding, but measuring their models does.
    where = {name: getattr(job, name) for name in ("precision", "device", "sharding", "cpu_offload")}
    own = trained.model_copy(
        update={
            "training": trained.training.model_copy(update={**where, "sum_each_micro_batch": False}),
            "evaluation": trained.evaluation.model_copy(update={"batch": job.evaluation.batch}),
        }
    )
    encoded: str = config["data"]["key"]
    as_trained = config["job"]["training"]["precision"] == job.precision
    if job.labelled is None and found.key == f"{run}/{FINAL}" and as_trained:
        return identify_own(store, own, run, [encoded])
    measured = _in_batches(
        tuning.on_splits(own, run, found, job.checkpoint, encoded, evaluation=_measured_by(own)), own
    )
    return measured if job.labelled is None else _on_files(store, job.labelled, own, measured)


def _on_files(store: Store, labelled: list[str], own: FinetuneJob, measured: Measurement) -> Measurement:
    """The measurement on new files, read with the settings of the run; another format is recognised by file names."""
    folder = measured.model.folder
    config = read_object(Path(folder, "config.json"))
    classes = None if own.data.task == "regression" else class_names(config)
    # No example is named in figures, so the files need no ids.
    values = own.data.model_dump(
        exclude={"train", "validation", "test", "path", "subset", "classes", "id_column"}, exclude_unset=True
    )
    source = format_by_name(labelled[0]) or own.data.source
    if source != own.data.source:
        values = {name: value for name, value in values.items() if name not in (*OF_CSV, "label_separator")}
    if source in ("hub", "disk"):
        raise ConfigError(
            f"labelled: the format of {labelled[0]!r} is unknown; give files whose names end in "
            f".{', .'.join(FORMAT_OF_ENDING)}"
        )
    named = {} if own.data.label_columns else {"classes": classes}
    data = validate_job(LabelledDataConfig, {**values, "source": source, "train": labelled, **named}, "labelled")
    files = find_splits(store, data)
    read = data.model_dump(include={"source", "quoting", "columns", "text_columns", "label_column", "label_columns"})
    new = NewFiles(own.model_copy(update={"data": data}), files, folder)
    # Recorded, because earlier versions read whole numbers as class numbers even if the files used them as names.
    recipe = {
        **measured.recipe,
        "files": files.identity[TRAIN],
        "read": read,
        "classes": "as the files number or name them",
    }
    return replace(measured, recipe=recipe, settings=new, data=(), run=None)


def log_unused(job: EvaluateJob) -> None:
    """Log which settings of an evaluation have no effect on a classifier."""
    settings = job.evaluation.model_dump()
    usual = EvaluationConfig().model_dump()
    if unused := [name for name, value in settings.items() if name != "batch" and value != usual.get(name)]:
        log.info("%s is a classifier: evaluation.%s has no effect on it", job.checkpoint, ", evaluation.".join(unused))


KIND = Kind(
    preflight=LazyFunction("trainer.kinds.labelled.preflight.labelled_preflight"),
    encode=LazyFunction("trainer.data.labelled.encoding.encode"),
    identify=identify,
    open=LazyFunction("trainer.kinds.labelled.workload.Finetuning"),
    plan=plan,
    measurement=identify_own,
    measure=LazyFunction("trainer.kinds.labelled.evaluate.measure_labelled"),
    checkpoint=identify_checkpoint,
    report_content=LazyFunction("trainer.kinds.labelled.page.describe_finetuning"),
    compared="trainer.kinds.labelled.page.COMPARED",
)
