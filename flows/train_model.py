"""Train a model on prepared shards: `python -m flows.train_model CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from tasks.patience import patient
from tasks.planning import plan_steps, preflight
from tasks.training import train
from trainer.config.files import Overrides
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.kind import require_prepared
from trainer.store.manifest import ArtifactRef


@flow(name="train-model", flow_run_name="{job.name}", log_prints=True)
def train_model(
    job: PipelineJob,
    set: Annotated[Overrides, SettingsOf(PipelineJob)] = FIRST,  # noqa: A002 - the name on the form
) -> ArtifactRef:
    """Train on shards published by prepare-data, or resume; reuse a finished run."""
    job = open_flow(job, set)
    checked = preflight(job)  # keep the reference: Prefect draws its graph by object identity
    data = patient(require_prepared)(job)
    plan = plan_steps(job, data, checked.ranks)
    run: ArtifactRef = train(job, data, plan, return_state=True).result()
    return run


if __name__ == "__main__":
    from flows.command import main

    main(["train", *sys.argv[1:]])
