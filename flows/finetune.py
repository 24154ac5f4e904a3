"""Labelled data, or conversations, to a tuned, evaluated model: `python -m flows.finetune CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.evaluation import evaluate_run
from tasks.harness import measure_harness
from tasks.opening import open_flow
from tasks.planning import finetune_preflight, plan_finetuning
from tasks.preparation import as_task
from tasks.promotion import consider
from tasks.reporting import report
from tasks.training import train
from trainer.config.chat import TunedJob
from trainer.config.files import Overrides
from trainer.config.finetuning import FinetuneJob
from trainer.evaluation.requests import gates_on_harness
from trainer.kinds.table import tuning_of
from trainer.kinds.tuning import TunedEvaluation
from trainer.records.evaluations import ChatEvaluation
from trainer.records.harness import HarnessResult
from trainer.records.results import FinetuneOutcome


@flow(name="finetune", flow_run_name="{job.name}", log_prints=True)
def finetune(
    job: TunedJob,
    set: Annotated[Overrides, SettingsOf(TunedJob)] = FIRST,  # noqa: A002 - the name on the form
) -> FinetuneOutcome:
    """Encode, plan the steps, train, evaluate, report, promote; whatever is done already is found in the store and reused."""
    job = open_flow(job, set)
    checked = finetune_preflight(job)  # kept to the end: Prefect draws its graph by the identity of objects
    data = as_task(tuning_of(job).encode, job)
    plan = plan_finetuning(job, data, checked.ranks)
    run = train(job, data, plan, return_state=True).result()
    evaluation = evaluate_run(job, data, run.key, checked.ranks, return_state=True, wait_for=[run]).result()
    harness = None
    if (asked := tuning_of(job).harness(job, run.key)) is not None:
        harness = measure_harness(asked, own=True, return_state=True, wait_for=[evaluation]).result()
    made = report(job.store, run.key, return_state=True, wait_for=[harness or evaluation]).result()
    whole = _beside(evaluation, harness)

    def measure(champion: str) -> TunedEvaluation | HarnessResult:
        alike = tuning_of(job).harness(job, champion) if gates_on_harness(job.promotion) else None
        state = (
            evaluate_run(job, data, run.key, checked.ranks, champion, return_state=True)
            if alike is None
            else measure_harness(alike, own=False, return_state=True)
        )
        measured: TunedEvaluation | HarnessResult = state.result()
        return measured

    verdict = consider(job.promotion, job.store, run.key, whole, measure)
    return FinetuneOutcome(run=run.key, evaluation=whole, report=made.key, promotion=verdict)


def _beside(evaluation: TunedEvaluation, harness: HarnessResult | None) -> TunedEvaluation:
    """An evaluation with what lm-eval measured, if it did."""
    if harness is None:
        return evaluation
    assert isinstance(evaluation, ChatEvaluation)  # language models alone are asked
    return evaluation.beside(harness)


if __name__ == "__main__":
    from flows.cli import main
    from flows.showing import show_finetuned

    sys.exit(main(finetune, FinetuneJob, show_finetuned))
