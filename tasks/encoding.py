"""The task that encodes a labelled data set."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import worth_retrying
from tasks.tokenization import publish
from trainer.config.finetuning import FinetuneJob
from trainer.store.manifest import ArtifactRef


@task(name="encode", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def encode(job: FinetuneJob) -> ArtifactRef:
    """Read, check and encode the labelled data, unless it is published and intact."""
    return publish("encode", {"job": job.model_dump(mode="json")})
