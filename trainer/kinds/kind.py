"""The interface of a kind of job, and lookups of the kind of a job, a file or a run in the table of config/kinds.py."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.files import Overrides, read_values, split_settings, validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.kinds import KINDS, JobKind, kinds_read_by, load, marked
from trainer.config.labelled import TuningJob
from trainer.config.runs import RunJob
from trainer.data.splits import find_splits
from trainer.evaluation.measurement import Measure, Measurement
from trainer.records.plans import RunPlan
from trainer.records.run_names import run_at
from trainer.records.sealed import read_sealed
from trainer.records.steps import Do, Step
from trainer.store.names import CONFIG
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData

if TYPE_CHECKING:
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts


class Planned(NamedTuple):
    """A plan, and a summary of the data: one line, and the rows of the table called `table`."""

    plan: RunPlan
    description: str
    table: str
    rows: list[dict[str, object]]


class LazyFunction:
    """A function given by module and name, imported at its first call."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.module = path.rpartition(".")[0]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.module not in sys.modules:
            with loading():
                load(self.path)
        return load(self.path)(*arguments, **options)


def encode_nothing(store: Store, job: Any, progress: Progress, model_folder: str | Path | None) -> Step:
    raise NotImplementedError(f"{type(job).__name__} has no data in splits to encode")


@dataclass(frozen=True)
class Kind:
    """The functions of a kind. They take a job of its schema, and import what they need when they are called."""

    preflight: LazyFunction
    """Check everything before long work starts, given a job and a `Progress`. Its module imports the libraries that the
    first tasks need. Raises the `PipelineError` of the first problem.
    """
    identify: Callable[[Any, Any], Run]
    """Return the run that a job and its data identify."""
    open: Callable[[Any, Store, Any, int], Any]
    """Open the `Workload` of a job and its data for this number of ranks."""
    plan: Callable[[Any, Any, int], Planned]
    """Plan the steps of a job and its data for this number of ranks."""
    measurement: Callable[[Store, Any, str, Sequence[str] | None, str | None], Measurement]
    """Return the measurement of a run's final model on the data with these keys, or of another run's model on the same
    data. Without keys, it uses the data that the run was last requested with.
    """
    measure: Measure
    """Compute the result of such a measurement. Called by every rank."""
    report_content: Callable[["RunFacts", Any], "ReportContent"]
    """Return the content of the report and the model card of a finished run with its plan."""
    compared: str
    """The path of its `ComparedKind`: what a comparison shows of its runs."""
    prepare: Callable[[Any, Do], TrainingData] = lambda job, do: do("encode", job)
    """Run the steps up to the job's training data, and return that data."""
    find_files: Callable[[Store, Any], object] = lambda store, job: find_splits(store, job.data)
    """Find the job's raw files, as the preflight does, but without loading torch. Raises `CorpusError` for the first
    problem.
    """
    encode: Callable[[Store, Any, Progress, str | Path | None], Step] = encode_nothing
    """Return the step that tokenizes the job's splits, with the tokenizer of the model in the given folder or else of
    the job's model."""
    is_light: bool = False
    """Whether its data and runs can be identified without importing numerical libraries."""
    checkpoint: Callable[[Store, EvaluateJob], Measurement | None] = lambda store, job: None
    """Return how to measure a checkpoint without a training job, or None if the checkpoint is not of this kind."""


if TYPE_CHECKING:
    AnyJob = RunJob
    TunedJob = TuningJob
else:
    AnyJob = Union[tuple(kind.schema for kind in KINDS)]  # noqa: UP007 - the number of kinds varies
    TunedJob = Union[tuple(kind.schema for kind in kinds_read_by("finetune"))]  # noqa: UP007


def entry_of(job: RunJob) -> JobKind:
    """The entry of the table for a job. Raises `TypeError` for anything but a training job."""
    for kind in KINDS:
        if isinstance(job, kind.schema):
            return kind
    raise TypeError(f"{type(job).__name__} is none of the job kinds {', '.join(kind.name for kind in KINDS)}")


def kind_of(job: RunJob) -> Kind:
    """The kind of a job. Raises `TypeError` for anything but a training job."""
    kind: Kind = entry_of(job).kind
    return kind


def load_training_job(path: str, overrides: Overrides = ()) -> RunJob:
    """Read a job from a YAML file, from `key=value` settings, or from both. Raises `ConfigError`."""
    path, overrides = split_settings(path, overrides)
    values = read_values(path, overrides, [kind.schema for kind in KINDS])
    kind = next(iter(marked(values)), KINDS[0])
    job: RunJob = validate_job(kind.schema, values, path)
    return job


def encode(store: Store, job: AnyJob, progress: Progress, model_folder: str | Path | None = None) -> Step:
    """The step that encodes the data of a job."""
    return kind_of(job).encode(store, job, progress, model_folder)


def identify_checkpoint(store: Store, job: EvaluateJob) -> tuple[Kind, Measurement]:
    """The measurement of any checkpoint and the kind that measures it. Raises `ConfigError` if the data to measure it
    on is unknown, and `ArtifactError` if the checkpoint is missing or damaged.

    The first kind of the table is tried last: it accepts any checkpoint, or raises an error that says why not.
    """
    kinds: list[Kind] = [entry.kind for entry in reversed(KINDS)]
    return next((kind, measurement) for kind in kinds if (measurement := kind.checkpoint(store, job)) is not None)


def find_run_of(store: Store, checkpoint: str | None) -> tuple[str, dict[str, Any]] | None:
    """The run that the checkpoint with this key belongs to, with its config.json; None if there is none in the store.

    Raises `ArtifactError` if config.json is damaged.
    """
    from trainer.registry.facts import require_job

    run = run_at(store, checkpoint)
    config = read_sealed(store, f"{run}/{CONFIG}") if run else None
    if run is None or config is None:
        return None
    require_job(store, run, config)
    return run, config


def identify_run(job: RunJob, data: TrainingData) -> Run:
    """The run that a job and its data identify."""
    return kind_of(job).identify(job, data)
