"""The task that encodes a labelled data set, or conversations."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import worth_retrying
from tasks.tokenization import as_result, run_step, show_skipped
from trainer.config.chat import TunedJob
from trainer.data.labelled.encoded import encoded_details
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@task(name="encode", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def encode(job: TunedJob, step: str) -> ArtifactRef:
    """Read, check and encode labelled data or conversations, by the step of their kind, unless that is published and intact."""
    made = run_step(step, job)
    show_skipped(encoded_details(Store(job.store), made.key))
    return as_result(made)
