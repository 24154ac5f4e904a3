"""What a kind of job says of itself."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.config.kinds import load
from trainer.evaluation.measurement import Measure, Measurement
from trainer.records.named_steps import Do
from trainer.records.plans import RunPlan
from trainer.records.steps import Step
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData

if TYPE_CHECKING:  # what draws pictures is loaded where a report or a comparison is made
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts


class Planned(NamedTuple):
    """A plan, and what is told of the data: in a line, and as rows of a table of this name."""

    plan: RunPlan
    told: str
    table: str
    rows: list[dict[str, object]]


class Later:
    """A function, by its module and name: loaded when it is first called."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.module = path.rpartition(".")[0]

    def __call__(self, *arguments: Any) -> Any:
        if self.module not in sys.modules:
            with loading():
                load(self.path)
        return load(self.path)(*arguments)


def encode_nothing(store: Store, job: Any, progress: Progress, model_folder: str | Path | None) -> Step:
    raise NotImplementedError(f"{type(job).__name__} has no data in splits to encode")


@dataclass(frozen=True)
class Kind:
    """What the functions of a kind take is a job of its schema; they load what they need when they are called."""

    preflight: Later
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
