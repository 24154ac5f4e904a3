"""Which kind a job, a file or a run is of, by the table of kinds (trainer/config/kinds.py)."""

from pathlib import Path
from typing import TYPE_CHECKING, Union

from trainer.common.progress import Progress
from trainer.config.files import read_values, validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.kinds import KINDS, JobKind, kinds_read_by, marked
from trainer.config.labelled import TuningJob
from trainer.config.runs import RunJob
from trainer.evaluation.measurement import Measurement
from trainer.kinds.kind import Kind
from trainer.records.steps import Step
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData

if TYPE_CHECKING:
    AnyJob = RunJob
    TunedJob = TuningJob
else:
    AnyJob = Union[tuple(kind.schema for kind in KINDS)]  # noqa: UP007 - of as many as there are
    TunedJob = Union[tuple(kind.schema for kind in kinds_read_by("finetune"))]  # noqa: UP007


def entry_of(job: RunJob) -> JobKind:
    """The line of the table that a job is of. Raises `TypeError` for what is no job that trains."""
    for kind in KINDS:
        if isinstance(job, kind.schema):
            return kind
    raise TypeError(f"{type(job).__name__} is of none of the kinds {', '.join(kind.name for kind in KINDS)}")


def kind_of(job: RunJob) -> Kind:
    """The kind that a job is of. Raises `TypeError` for what is no job that trains."""
    kind: Kind = entry_of(job).kind
    return kind


def load_training_job(path: str, overrides: tuple[str, ...] | list[str] = ()) -> RunJob:
    """The job of a YAML file, to which `key=value` words are added. Raises `ConfigError`."""
    values = read_values(path, overrides, [kind.schema for kind in KINDS])
    kind = next(iter(marked(values)), KINDS[0])
    job: RunJob = validate_job(kind.schema, values, path)
    return job


def encode(store: Store, job: AnyJob, progress: Progress, model_folder: str | Path | None = None) -> Step:
    """The step that encodes the data of a job, as its kind does."""
    return kind_of(job).encode(store, job, progress, model_folder)


def identify_checkpoint(store: Store, job: EvaluateJob) -> tuple[Kind, Measurement]:
    """How any checkpoint is measured, and by which kind. Raises `ConfigError` if it is not known on what, and
    `ArtifactError` if it is missing or damaged.

    The first of the table is asked last: it measures whatever it is given, or says why not.
    """
    kinds: list[Kind] = [kind.kind for kind in reversed(KINDS)]
    return next((kind, wanted) for kind in kinds if (wanted := kind.checkpoint(store, job)) is not None)


def identify_run(job: RunJob, data: TrainingData) -> Run:
    """The run that a job and its data make."""
    return kind_of(job).identify(job, data)
