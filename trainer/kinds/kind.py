"""What a kind of job says of itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.measurement import Measure, Measurement
from trainer.records.named_steps import Do
from trainer.records.plans import RunPlan
from trainer.records.results import AnyPreflight
from trainer.records.run_kinds import RunKind
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData

if TYPE_CHECKING:  # what draws pictures is loaded where a report or a comparison is made
    from trainer.registry.compared_runs import ComparedKind
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts


class Planned(NamedTuple):
    """A plan, and what is told of the data: in a line, and as rows of a table of this name."""

    plan: RunPlan
    told: str
    table: str
    rows: list[dict[str, object]]


@dataclass(frozen=True)
class Kind:
    """One entry of the table. Its functions take a job of its schema, and load what they need when they are called."""

    recorded: RunKind
    """How its runs are recorded, and the job's schema."""
    data_key: str
    """The key of `data` by which a file is seen to be of this kind, before it is validated; also its task, if it has
    one.
    """
    preflight: Callable[[Any, Progress], AnyPreflight]
    """Look at everything before long work starts. Raises the `PipelineError` of what is wrong."""
    prepare: Callable[[Any, Do], TrainingData]
    """What the job trains on: its pipeline up to there."""
    identify: Callable[[Any, Any], Run]
    """The run that a job and its data make."""
    open: Callable[[Any, Store, Any, int], Any]
    """The `Workload` of a job and its data for so many ranks."""
    plan: Callable[[Any, Any, int], Planned]
    """The plan of a job and its data for so many ranks."""
    measurement: Callable[[Store, Any, str, Sequence[str] | None, str | None], Measurement]
    """How the final model of a job's run is measured on data of these keys, or that of another run in the same way;
    without keys, on what the run was last asked for with.
    """
    measure: Measure
    """Makes the result of such a measurement. Called by every rank."""
    report_content: Callable[["RunFacts", Any], "ReportContent"]
    """What the report and the model card tell of a finished run and its plan."""
    compared: Callable[[], "ComparedKind"]
    """What is compared of its runs."""
    checkpoint: Callable[[Store, EvaluateJob], Measurement | None] = lambda store, job: None
    """How a checkpoint of no job is measured; None if that is not of this kind."""
    harness: Callable[[Any, str], EvaluateJob | None] = lambda job, run_key: None
    """What lm-eval is to measure of the final model of a run, if the job names tasks."""

    @property
    def schema(self) -> type[Any]:
        """The job's schema: it validates the YAML file, the command line and a deployment's form."""
        return self.recorded.job
