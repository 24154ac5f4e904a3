"""The order of stages of every kind of training job. A `Stages` object runs them, or only looks."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trainer.config.jobs import EvaluateJob
from trainer.config.runs import RunJob
from trainer.evaluation.measurement import harness_job
from trainer.kinds.kind import kind_of
from trainer.records.evaluations import Result
from trainer.records.named_steps import Do
from trainer.records.plans import RunPlan
from trainer.records.results import AnyPreflight, Finished, Outcome, Verdict
from trainer.store.manifest import ArtifactRef
from trainer.training.identity import TrainingData

if TYPE_CHECKING:  # what draws pictures is loaded where a report is made
    from trainer.registry.report import Report


class Stages(Protocol):
    """Carries out what a pipeline asks for, in this process or as tasks of Prefect, or only looks."""

    @property
    def make(self) -> Do:
        """Makes the artifact of a step."""

    def preflight(self, job: Any) -> AnyPreflight | Finished:
        """Look at everything before long work starts."""

    def plan(self, job: Any, data: TrainingData, checked: AnyPreflight | Finished) -> RunPlan:
        """Compute the steps from what there is of the data."""

    def train(self, job: Any, data: TrainingData, plan: RunPlan) -> ArtifactRef:
        """Train, or continue, to the final model."""

    def evaluate(self, job: Any, data: TrainingData, plan: RunPlan, run: str) -> Result:
        """Measure the final model of a run."""

    def harness(self, asked: EvaluateJob, evaluation: Any) -> Any:
        """Have lm-eval measure it, too; returns the evaluation with its figures."""

    def report(self, job: Any, run: str) -> "Report":
        """Write the page and the model card."""

    def consider(
        self, job: Any, data: TrainingData, plan: RunPlan, run: str, evaluation: Result | None
    ) -> Verdict | None:
        """Hold the model against the gate, if the job has one, and make it the champion if it passes."""


class Walked(NamedTuple):
    """What the stages gave: the run, its evaluation if anything is held out, its report, and the gate's verdict."""

    run: str
    evaluation: Result | None
    report: "Report"
    promotion: Verdict | None


def walk(job: RunJob, stages: Stages) -> Walked:
    """Prepare the data, plan the steps, train, evaluate, report, promote."""
    kind = kind_of(job)
    checked = stages.preflight(job)
    data = kind.prepare(job, stages.make)
    plan = stages.plan(job, data, checked)
    run = stages.train(job, data, plan).key
    evaluation = stages.evaluate(job, data, plan, run) if plan.holds_out else None
    if evaluation is not None and (asked := harness_job(job, run)) is not None:
        evaluation = stages.harness(asked, evaluation)
    report = stages.report(job, run)
    return Walked(run, evaluation, report, stages.consider(job, data, plan, run, evaluation))


def run_pipeline(job: RunJob, stages: Stages) -> Outcome:
    """Walk through the stages of a job. Each finds what is done already and reuses it (docs/explanation/tree.md)."""
    walked = walk(job, stages)
    return Outcome(**{**walked._asdict(), "report": walked.report.key})
