"""The kinds of job, and which of them a job or a file is of."""

from collections.abc import Mapping
from typing import Any

from trainer.config.files import read_values, validate_job
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.measurement import Measurement
from trainer.kinds.chat.kind import CHAT
from trainer.kinds.kind import Kind
from trainer.kinds.labelled.kind import FINETUNING
from trainer.kinds.pretraining.kind import PRETRAINING
from trainer.records.run_kinds import run_kind, task_of
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData, TrainingJob

KINDS = (CHAT, FINETUNING, PRETRAINING)
"""A file is of the first kind whose key its `data` has, and whose task if that has one."""


def kind_of(job: TrainingJob) -> Kind:
    """The kind that a job is of. Raises `TypeError` for what is no job that trains."""
    for kind in KINDS:
        if isinstance(job, kind.schema):
            return kind
    raise TypeError(f"{type(job).__name__} is of none of the kinds {', '.join(kind.schema.__name__ for kind in KINDS)}")


def kind_of_run(config: Mapping[str, Any]) -> Kind:
    """The kind of the run whose config.json this is. Raises `ValueError` if its data is that of none."""
    recorded = run_kind(config)
    return next(kind for kind in KINDS if kind.recorded == recorded)


def marked_kinds(values: Mapping[str, Any]) -> list[Kind]:
    """The kinds whose key the `data` of a file has, in their order."""
    data = values.get("data")
    task = task_of(values)
    return [
        kind
        for kind in KINDS
        if isinstance(data, dict) and kind.data_key in data and kind.recorded.task in (None, task)
    ]


def load_training_job(path: str, overrides: tuple[str, ...] | list[str] = ()) -> TrainingJob:
    """The job of a YAML file, to which `key=value` words are added. Raises `ConfigError`."""
    values = read_values(path, overrides, [kind.schema for kind in KINDS])
    kind = next(iter(marked_kinds(values)), PRETRAINING)
    job: TrainingJob = validate_job(kind.schema, values, path)
    return job


def identify_checkpoint(store: Store, job: EvaluateJob) -> tuple[Kind, Measurement]:
    """How any checkpoint is measured, and by which kind. Raises `ConfigError` if it is not known on what, and
    `ArtifactError` if it is missing or damaged.
    """
    for kind in KINDS:
        if (wanted := kind.checkpoint(store, job)) is not None:
            return kind, wanted
    raise AssertionError("the last kind measures whatever it is given, or says why not")


def identify_run(job: TrainingJob, data: TrainingData) -> Run:
    """The run that a job and its data make."""
    return kind_of(job).identify(job, data)
