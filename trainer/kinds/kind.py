"""What a kind of job says of itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.common.progress import Progress
from trainer.foresight.foreseen import Foreseen
from trainer.kinds.tuning import Tuning
from trainer.pipelines.steps import Do
from trainer.records.evaluations import RunEvaluation
from trainer.records.harness import HarnessResult
from trainer.records.kinds import RunKind
from trainer.records.results import FinetunePreflight, Preflight
from trainer.runs.facts import RunFacts
from trainer.runs.run import Run, TrainingData
from trainer.store.storage import Store

if TYPE_CHECKING:  # what draws pictures is loaded where a report or a comparison is made
    from trainer.comparison.runs import ComparedKind
    from trainer.report.account import Account


@dataclass(frozen=True)
class Kind:
    """One entry of the table. Its functions take a job of its schema, and load what they need when they are called."""

    recorded: RunKind
    """How its runs are recorded, and the job's schema."""
    mark: str
    """The key of `data` by which a file is seen to be of this kind, before it is validated; also its task, if it has one."""
    preflight: Callable[[Any, Progress], Preflight | FinetunePreflight]
    """Look at everything before long work starts. Raises the `PipelineError` of what is wrong."""
    prepare: Callable[[Any, Do], TrainingData]
    """What the job trains on: its pipeline up to there."""
    identify: Callable[[Any, Any], Run]
    """The run that a job and its data make."""
    open: Callable[[Any, Store, Any, int], Any]
    """The `Workload` of a job and its data for so many ranks."""
    evaluate: Callable[[Any, str, Any, Progress], RunEvaluation | None]
    """The figures of a run's final model; None if nothing is held out. Called by every rank."""
    evaluate_alike: Callable[[Any, str, str, Any, Progress], RunEvaluation | HarnessResult]
    """The figures of another run's model, measured as the first one's evaluation was."""
    foresee_evaluation: Callable[[Store, Any, Any, str], Foreseen]
    """Whether a finished run was measured in the same way."""
    make_account: Callable[[RunFacts, Any], "Account"]
    """What the report and the model card tell of a finished run and its plan."""
    compared: Callable[[], "ComparedKind"]
    """What is compared of its runs."""
    tuning: Tuning | None = None
    """What the flow `finetune` does with its jobs; None of a kind with a flow of its own."""
    foresee_harness: Callable[[Store, Any, str], Foreseen | None] = lambda store, job, run_key: None
    """Whether lm-eval measured a finished run on the same tasks; None of a job that does not ask for it."""

    @property
    def schema(self) -> type[Any]:
        """The job's schema: it validates the YAML file, the command line and a deployment's form."""
        return self.recorded.job
