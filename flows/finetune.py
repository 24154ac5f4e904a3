"""Fine-tune a model on labelled data, conversations or preference pairs.

python -m flows.finetune CONFIG.yaml [key=value ...]
"""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from tasks.pipeline import AsTasks
from trainer.config.files import Overrides
from trainer.kinds.kind import TunedJob
from trainer.pipelines.pipeline import run_pipeline
from trainer.records.results import Outcome


@flow(name="finetune", flow_run_name="{job.name}", log_prints=True)
def finetune(
    job: TunedJob,
    set: Annotated[Overrides, SettingsOf(TunedJob)] = FIRST,  # noqa: A002 - the name on the form
) -> Outcome:
    """Encode, plan the steps, train, evaluate, report and promote, reusing what the store already holds."""
    return run_pipeline(open_flow(job, set), AsTasks())


if __name__ == "__main__":
    from flows.command import main

    main(["finetune", *sys.argv[1:]])
