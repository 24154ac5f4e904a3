"""The order of stages of all kinds of training jobs, which a `Stages` object runs or explains.

`find_finished_job` detects complete jobs, so that they are reported without loading the heavy libraries.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trainer.common.errors import PipelineError
from trainer.config.jobs import EvaluateJob
from trainer.config.runs import RunJob
from trainer.evaluation.harness_identity import identify_harness
from trainer.evaluation.measurement import find_result, harness_job
from trainer.kinds.kind import Kind, kind_of
from trainer.records.evaluations import Result
from trainer.records.plans import RunPlan, read_plan
from trainer.records.results import AnyPreflight, Finished, Outcome, Verdict
from trainer.records.sealed import require_sealed
from trainer.records.steps import Do, NotMade, only_look
from trainer.store.manifest import MANIFEST, ArtifactRef
from trainer.store.names import FINAL, PLAN
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, data_keys, finished_run, is_whole

if TYPE_CHECKING:  # plotting libraries are loaded only when a report is created
    from trainer.registry.report import Report


class Stages(Protocol):
    """Implements the stages: in this process, as Prefect tasks, or as explanations only."""

    @property
    def make(self) -> Do:
        """Returns a function that finds or builds the artifact of a step."""

    def preflight(self, job: Any) -> AnyPreflight | Finished:
        """Check everything before long work starts."""

    def plan(self, job: Any, data: TrainingData, checked: AnyPreflight | Finished) -> RunPlan:
        """Compute the training steps from the prepared data."""

    def train(self, job: Any, data: TrainingData, plan: RunPlan) -> ArtifactRef:
        """Train, or continue training, to the final model."""

    def evaluate(self, job: Any, data: TrainingData, plan: RunPlan, run: str) -> Result:
        """Evaluate the final model of a run."""

    def harness(self, evaluation_job: EvaluateJob, evaluation: Any) -> Any:
        """Evaluate it with lm-eval; return the evaluation with lm-eval's results."""

    def report(self, job: Any, run: str) -> "Report":
        """Write the report and the model card."""

    def consider(
        self, job: Any, data: TrainingData, plan: RunPlan, run: str, evaluation: Result | None
    ) -> Verdict | None:
        """Apply the gate, if the job has one, and promote the model if it passes."""


class Walked(NamedTuple):
    """Results of the stages: run, evaluation if anything is held out, report, and the gate's decision."""

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
    if evaluation is not None and (evaluation_job := harness_job(job, run)) is not None:
        evaluation = stages.harness(evaluation_job, evaluation)
    report = stages.report(job, run)
    return Walked(run, evaluation, report, stages.consider(job, data, plan, run, evaluation))


def run_pipeline(job: RunJob, stages: Stages) -> Outcome:
    """Run the stages of a job. Each stage reuses finished work (docs/explanation/tree.md)."""
    walked = walk(job, stages)
    return Outcome(**{**walked._asdict(), "report": walked.report.key})


def has_finished(store: Store, job: RunJob) -> bool:
    """Whether a run whose name begins with the job's has a final model; if not, the job is not finished."""
    named = [f"runs/{run}" for run in store.names("runs") if run.startswith(job.run or job.name)]
    return any(store.exists(f"{run}/{FINAL}/{MANIFEST}") for run in named)


def find_finished_job(job: RunJob) -> Finished | None:
    """Return a job's run if its data, final model and evaluations are all published; else None.

    None also if something is wrong, which the stages report, and for kinds of job whose names need heavy libraries.
    """
    kind = kind_of(job)
    with suppress(NotMade, PipelineError):
        return _find(kind, job) if kind.is_light else None
    return None


def _find(kind: Kind, job: RunJob) -> Finished:
    store = Store(job.store)
    if not has_finished(store, job):
        raise NotMade
    data = kind.prepare(job, only_look)
    run = kind.identify(job, data)
    if finished_run(store, run, "changed") is None or not is_whole(store, run, job, data):
        raise NotMade
    plan = read_plan(require_sealed(store, f"{run.key}/{PLAN}"))
    measured = [kind.measurement(store, job, run.key, data_keys(data), None)] if plan.holds_out else []
    if plan.holds_out and (evaluation_job := harness_job(job, run.key)) is not None:
        measured.append(identify_harness(store, evaluation_job, own=True))
    if any(find_result(store, each) is None for each in measured):
        raise NotMade
    return Finished(run=run.key, ranks=plan.ranks)
