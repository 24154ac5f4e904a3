"""Prepared shards to a trained model: `python -m flows.train_model CONFIG.yaml [key=value ...]`."""

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
from trainer.store.manifest import REPAIR, ArtifactRef, require_intact
from trainer.store.storage import Store


@flow(name="train-model", flow_run_name="{job.name}", log_prints=True)
def train_model(
    job: PipelineJob,
    set: Annotated[Overrides, SettingsOf(PipelineJob)] = FIRST,  # noqa: A002 - the name on the form
) -> ArtifactRef:
    """Train on shards that prepare-data has published, or continue; a finished run is reused."""
    job = open_flow(job, set)
    checked = preflight(job)  # kept to the end: Prefect draws its graph by the identity of objects
    data = require_prepared(job)
    plan = plan_steps(job, data, checked.ranks)
    run: ArtifactRef = train(job, data, plan, return_state=True).result()
    return run


@patient()
def require_prepared(job: PipelineJob) -> PreparedData:
    """The job's shards. Raises `ArtifactError` if there are none, or they are damaged."""
    data = find_prepared(job.preparation())
    if data is None:
        raise ArtifactError(f"{job.store} holds no shards for these corpora as they are now; run prepare-data first")
    store = Store(job.store)
    for ref, manifest in zip(data.shards, shard_manifests(store, data), strict=True):
        require_intact(store, ref.key, manifest, REPAIR, content=job.verify, anew=True)
    return data


if __name__ == "__main__":
    from flows.cli import main
    from flows.showing import show_run

    sys.exit(main(train_model, PipelineJob, show_run))
