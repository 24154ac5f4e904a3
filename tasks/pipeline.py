"""A pipeline's stages as Prefect tasks."""

from typing import Any, TypeVar

from tasks.data import curate, encode, prepare_tokenizer, reference, tokenize_corpus
from tasks.evaluation import evaluate_run, measure_harness
from tasks.planning import plan_steps, preflight
from tasks.promotion import consider
from tasks.reporting import report
from tasks.training import train
from trainer.config.jobs import EvaluateJob
from trainer.records import steps
from trainer.records.evaluations import Result
from trainer.records.plans import RunPlan
from trainer.records.results import AnyPreflight, Finished, Verdict
from trainer.registry.gate import champion_job
from trainer.registry.report import Report
from trainer.store.manifest import ArtifactRef
from trainer.training.identity import TrainingData, data_keys

TASKS: dict[str, Any] = {
    "curate": curate,
    "tokenizer": prepare_tokenizer,
    "tokenize": tokenize_corpus,
    "encode": encode,
    "reference": reference,
}

Made = TypeVar("Made")


class AsTasks:
    """The `Stages` of a flow, each a task that waits for the previous one.

    Tasks' arguments and results are kept until the end, because Prefect draws its graph by object identity.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._ranks = 1

    def make(self, name: str, job: Any, **made: Any) -> ArtifactRef:
        self._kept.append(job)
        ranks = {"ranks": self._ranks} if steps.STEPS[name].made_by else {}
        ref: ArtifactRef = TASKS[name](job, **made, **ranks, return_state=True).result()
        return self._keep(ref)

    def preflight(self, job: Any) -> AnyPreflight | Finished:
        checked = self._keep(preflight(job))
        self._ranks = checked.ranks
        return checked

    def plan(self, job: Any, data: Any, checked: AnyPreflight | Finished) -> RunPlan:
        return self._keep(plan_steps(job, data, checked.ranks))

    def train(self, job: Any, data: TrainingData, plan: RunPlan) -> ArtifactRef:
        return self._keep(train(job, data, plan, return_state=True).result())

    def evaluate(self, job: Any, data: Any, plan: RunPlan, run: str) -> Result:
        after = self._kept[-1:]
        return self._keep(
            evaluate_run(job, data_keys(data), run, plan.ranks, return_state=True, wait_for=after).result()
        )

    def harness(self, evaluation_job: EvaluateJob, evaluation: Any) -> Any:
        measured = measure_harness(evaluation_job, own=True, return_state=True, wait_for=self._kept[-1:]).result()
        return evaluation.beside(self._keep(measured))

    def report(self, job: Any, run: str) -> Report:
        return self._keep(report(job.store, run, return_state=True, wait_for=self._kept[-1:]).result())

    def consider(self, job: Any, data: Any, plan: RunPlan, run: str, evaluation: Result | None) -> Verdict | None:
        if evaluation is None:
            return None

        def measure(champion: str) -> Result:
            if (evaluation_job := champion_job(job, champion)) is not None:
                return measure_harness(evaluation_job, own=False, return_state=True).result()
            return evaluate_run(job, evaluation.data, run, plan.ranks, champion, return_state=True).result()

        return consider(job.promotion, job.store, run, evaluation, measure)

    def _keep(self, result: Made) -> Made:
        self._kept.append(result)
        return result
