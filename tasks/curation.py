"""The task that decides which documents stay."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import worth_retrying
from tasks.tokenization import as_result, run_step
from trainer.config.jobs import PrepareJob
from trainer.curation.telling import decision_rows, decision_warnings, describe_decisions
from trainer.data.decisions import read_decisions
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@task(name="curate", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def curate(job: PrepareJob) -> ArtifactRef:
    """Decide about each document of the raw text, unless that is published and intact."""
    made = run_step("curate", job)
    details = read_decisions(Store(job.store), made.key).details
    told = "\n\n".join([describe_decisions(details), *decision_warnings(details)])
    create_table_artifact(decision_rows(details), key="curation", description=told)
    return as_result(made)
