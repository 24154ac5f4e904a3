"""Train a model on prepared shards: `python -m flows.train_model CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from tasks.patience import patient
from tasks.planning import plan_steps, preflight
from tasks.training import train
from trainer.common.errors import ArtifactError
from trainer.config.files import Overrides
from trainer.config.jobs import PipelineJob
from trainer.data.tokenization import shard_manifests
from trainer.kinds.pretraining.kind import find_prepared
from trainer.records.plans import PreparedData
from trainer.store.artifact_files import REPAIR, require_intact
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@flow(name="train-model", flow_run_name="{job.name}", log_prints=True)
def train_model(
    job: PipelineJob,
    set: Annotated[Overrides, SettingsOf(PipelineJob)] = FIRST,  # noqa: A002 - the name on the form
) -> ArtifactRef:
    """Train on shards published by prepare-data, or resume; reuse a finished run."""
    job = open_flow(job, set)
    checked = preflight(job)  # keep the reference: Prefect draws its graph by object identity
    data = require_prepared(job)
    plan = plan_steps(job, data, checked.ranks)
    run: ArtifactRef = train(job, data, plan, return_state=True).result()
    return run


@patient()
def require_prepared(job: PipelineJob) -> PreparedData:
    """The job's shards. Raises `ArtifactError` if they are missing or damaged."""
    data = find_prepared(job.preparation())
    if data is None:
        raise ArtifactError(f"{job.store} holds no shards of these corpora's current files; run prepare-data first")
    store = Store(job.store)
    for ref, manifest in zip(data.shards, shard_manifests(store, data), strict=True):
        require_intact(store, ref.key, manifest, REPAIR, "all" if job.verify else "sizes")
    return data


if __name__ == "__main__":
    from flows.cli import main
    from flows.showing import show_run

    sys.exit(main(train_model, PipelineJob, show_run))
