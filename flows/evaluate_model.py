"""Evaluate a checkpoint on held-out text or examples: `python -m flows.evaluate_model CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.evaluation import evaluate, measure_harness
from tasks.opening import open_flow
from trainer.config.files import Overrides
from trainer.config.jobs import EvaluateJob
from trainer.records.evaluations import Result


@flow(name="evaluate-model", flow_run_name="{job.checkpoint}", log_prints=True)
def evaluate_model(
    job: EvaluateJob,
    set: Annotated[Overrides, SettingsOf(EvaluateJob)] = FIRST,  # noqa: A002 - the name on the form
) -> Result:
    """Score a language model by corpus and in total, and continue the prompts; or score a classifier by split."""
    job = open_flow(job, set)
    result: Result = evaluate(job, return_state=True).result()
    if job.evaluation.harness is None or result.by != "corpus":
        return result
    return result.beside(measure_harness(job, own=False, return_state=True, wait_for=[result]).result())


if __name__ == "__main__":
    from flows.command import main

    main(["evaluate", *sys.argv[1:]])
