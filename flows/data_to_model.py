"""Raw corpora to an evaluated model: `python -m flows.data_to_model CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.evaluation import evaluate
from tasks.harness import measure_harness
from tasks.opening import open_flow
from tasks.planning import plan_steps, preflight
from tasks.preparation import as_task
from tasks.promotion import consider
from tasks.reporting import report
from tasks.training import train
from trainer.config.files import Overrides
from trainer.config.jobs import PipelineJob
from trainer.evaluation.requests import gates_on_harness, measurement, measurement_alike
from trainer.pipelines.preparing import prepare
from trainer.records.evaluations import Evaluation, RunEvaluation
from trainer.records.harness import HarnessResult
from trainer.records.results import Outcome


@flow(name="data-to-model", flow_run_name="{job.name}", log_prints=True)
def data_to_model(
    job: PipelineJob,
    set: Annotated[Overrides, SettingsOf(PipelineJob)] = FIRST,  # noqa: A002 - the name on the form
) -> Outcome:
    """Tokenize, plan the steps, train, evaluate, report, promote; whatever is done already is found in the store and reused."""
    job = open_flow(job, set)
    checked = preflight(job)  # kept to the end: Prefect draws its graph by the identity of objects

    preparation = job.preparation()
    data = prepare(preparation, as_task)

    plan = plan_steps(job, data, checked.ranks)
    run = train(job, data, plan, return_state=True).result()

    measuring = measurement(job, run.key)
    evaluation = evaluate(measuring, plan.ranks, return_state=True, wait_for=[run]).result() if plan.holds_out else None
    harness = None
    if evaluation is not None and job.evaluation.harness is not None:
        harness = measure_harness(measuring, own=True, return_state=True, wait_for=[evaluation]).result()
    made = report(job.store, run.key, return_state=True, wait_for=[harness or evaluation or run]).result()
    if evaluation is None:
        return Outcome(run=run.key, evaluation=None, report=made.key)
    assert isinstance(evaluation, Evaluation)  # what is pretrained is a language model
    whole = evaluation if harness is None else evaluation.beside(harness)

    def measure(champion: str) -> RunEvaluation | HarnessResult:
        alike, by_harness = measurement_alike(measuring, champion, whole), gates_on_harness(job.promotion)
        state = (
            measure_harness(alike, own=False, return_state=True)
            if by_harness
            else evaluate(alike, plan.ranks, return_state=True)
        )
        measured: RunEvaluation | HarnessResult = state.result()
        return measured

    verdict = consider(job.promotion, job.store, run.key, whole, measure)
    return Outcome(run=run.key, evaluation=whole, report=made.key, promotion=verdict)


if __name__ == "__main__":
    from flows.cli import main
    from flows.showing import show_outcome

    sys.exit(main(data_to_model, PipelineJob, show_outcome))
