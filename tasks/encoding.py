"""The task that encodes a labelled data set, or conversations."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import worth_retrying
from tasks.tokenization import publish
from trainer.config.chat import TunedJob
from trainer.kinds.table import tuning_of
from trainer.store.manifest import ArtifactRef


@task(name="encode", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def encode(job: TunedJob) -> ArtifactRef:
    """Read, check and encode labelled data or conversations, unless they are published and intact."""
    return publish(tuning_of(job).encode, {"job": job.model_dump(mode="json")})
