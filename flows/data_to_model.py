"""Raw corpora to an evaluated model: `python -m flows.data_to_model CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from tasks.pipeline import AsTasks
from trainer.config.files import Overrides
from trainer.config.jobs import PipelineJob
from trainer.pipelines.pipeline import run_pipeline
from trainer.records.results import Outcome


@flow(name="data-to-model", flow_run_name="{job.name}", log_prints=True)
def data_to_model(
    job: PipelineJob,
    set: Annotated[Overrides, SettingsOf(PipelineJob)] = FIRST,  # noqa: A002 - the name on the form
) -> Outcome:
    """Curate, tokenize, plan the steps, train, evaluate, report and promote, reusing what the store already holds."""
    return run_pipeline(open_flow(job, set), AsTasks())


if __name__ == "__main__":
    from flows.command import main

    main(["run", *sys.argv[1:]])
