"""What a kind of job says of itself, and which kind a job, a file or a run is of, by the table in config/kinds.py."""

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
from trainer.evaluation.measurement import Measure, Measurement
from trainer.records.plans import RunPlan
from trainer.records.steps import Do, Step
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData

if TYPE_CHECKING:
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts


class Planned(NamedTuple):
    """A plan, and what is told of the data: in a line, and as rows of a table of this name."""

    plan: RunPlan
    told: str
    table: str
    rows: list[dict[str, object]]


class LazyFunction:
    """A function, by its module and name: loaded when it is first called. It is called with these options."""

    def __init__(self, path: str, **options: Any) -> None:
        self.path, self.options = path, options
        self.module = path.rpartition(".")[0]

    def __call__(self, *arguments: Any) -> Any:
        if self.module not in sys.modules:
            with loading():
                load(self.path)
        return load(self.path)(*arguments, **self.options)


def encode_nothing(store: Store, job: Any, progress: Progress, model_folder: str | Path | None) -> Step:
    raise NotImplementedError(f"{type(job).__name__} has no data in splits to encode")


@dataclass(frozen=True)
class Kind:
    """What the functions of a kind take is a job of its schema; they load what they need when they are called."""

    preflight: LazyFunction
    """Look at everything before long work starts, given a job and a `Progress`; its module loads what jobs need first.
    Raises the `PipelineError` of what is wrong.
    """
    identify: Callable[[Any, Any], Run]
    """The run that a job and its data make."""
    open: Callable[[Any, Store, Any, int], Any]
    """The `Workload` of a job and its data for so many ranks."""
    plan: Callable[[Any, Any, int], Planned]
    """The plan of a job and its data for so many ranks."""
    measurement: Callable[[Store, Any, str, Sequence[str] | None, str | None], Measurement]
    """The measurement of a run's final model on the data with these keys. If another run is given, it measures that
    run's model on the same data. Without keys, it uses the data that the run was last requested with.
    """
    measure: Measure
    """Makes the result of such a measurement. Called by every rank."""
    report_content: Callable[["RunFacts", Any], "ReportContent"]
    """What the report and the model card tell of a finished run and its plan."""
    compared: str
    """The name of its `ComparedKind`: what is compared of its runs."""
    prepare: Callable[[Any, Do], TrainingData] = lambda job, do: do("encode", job)
    """What the job trains on: its pipeline up to there."""
    encode: Callable[[Store, Any, Progress, str | Path | None], Step] = encode_nothing
    """The step that tokenizes the job's splits. The tokenizer is that of the model in the given folder, or else of the
    model that the job names."""
    is_light: bool = False
    """Whether its data and runs are named without the libraries that compute."""
    checkpoint: Callable[[Store, EvaluateJob], Measurement | None] = lambda store, job: None
    """How a checkpoint is measured when no training job is given; None if it is not of this kind."""


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


def load_training_job(path: str, overrides: Overrides = ()) -> RunJob:
    """The job of a YAML file, to which `key=value` words are added. Raises `ConfigError`."""
    path, overrides = split_settings(path, overrides)
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
    kinds: list[Kind] = [entry.kind for entry in reversed(KINDS)]
    return next((kind, wanted) for kind in kinds if (wanted := kind.checkpoint(store, job)) is not None)


def identify_run(job: RunJob, data: TrainingData) -> Run:
    """The run that a job and its data make."""
    return kind_of(job).identify(job, data)
