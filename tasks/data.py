"""Tasks that curate raw text, and turn corpora, labelled data and conversations into tokens."""

from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from pydantic import BaseModel

from tasks.patience import patient
from tasks.showing import TaskLogger, reused, showing, worth_retrying
from tasks.stage import run_stage
from tasks.turns import TOKENIZATION, turn
from trainer.common.bad_records import skipped_rows
from trainer.config.chat import TunedJob
from trainer.config.jobs import PrepareJob
from trainer.curation.telling import decision_rows, decision_warnings, describe_decisions
from trainer.data.decisions import read_decisions
from trainer.data.labelled.encoded import encoded_details
from trainer.data.tokenization import PreparedData, shard_manifests
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@task(
    name="prepare-tokenizer",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=10,
    retry_condition_fn=worth_retrying,
)
@patient()
def prepare_tokenizer(job: PrepareJob, decisions: ArtifactRef | None = None) -> ArtifactRef:
    """Train or take the tokenizer, unless it is published and intact."""
    return as_result(run_step("tokenizer", job, decisions=decisions))


@task(
    name="tokenize-corpus",
    task_run_name="tokenize-{corpus}",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=10,
    retry_condition_fn=worth_retrying,
)
@patient()
def tokenize_corpus(
    job: PrepareJob, corpus: str, tokenizer: ArtifactRef, decisions: ArtifactRef | None = None
) -> ArtifactRef:
    """Tokenize the documents of one corpus that stay into shards, unless they are published and intact."""
    made = run_step("tokenize", job, corpus=corpus, tokenizer=tokenizer, decisions=decisions)
    (manifest,) = shard_manifests(Store(job.store), PreparedData(tokenizer=tokenizer, shards=[made]))
    show_skipped(manifest.details)
    return as_result(made)


def show_skipped(details: dict[str, Any]) -> None:
    """Show which bad records were skipped, and why, of the data that an artifact was made of."""
    if rows := skipped_rows(details):
        create_table_artifact(rows, key="skipped-records", description="bad records that were skipped; three are named")


def run_step(name: str, job: Any, **made: Any) -> ArtifactRef:
    """Have a step's artifact made, or found, and say which."""
    logger, arguments = TaskLogger(), {"job": job, **made}
    plain = {
        key: each.model_dump(mode="json") if isinstance(each, BaseModel) else each for key, each in arguments.items()
    }
    with turn(TOKENIZATION), showing() as show:
        ref = ArtifactRef(**run_stage(name, plain, show, logger))
    if ref.reused:
        logger.info("reused %s: made from the same inputs", ref.key)
    else:
        logger.info("published %s (%.1f MB)", ref.key, ref.size / 1e6)
    return ref


def as_result(ref: ArtifactRef) -> ArtifactRef:
    """A published artifact as a task returns it: of one that was found, the state that says so."""
    return reused(ref, f"{ref.key} is published") if ref.reused else ref


@task(name="curate", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def curate(job: PrepareJob) -> ArtifactRef:
    """Decide about each document of the raw text, unless that is published and intact."""
    made = run_step("curate", job)
    details = read_decisions(Store(job.store), made.key).details
    told = "\n\n".join([describe_decisions(details), *decision_warnings(details)])
    create_table_artifact(decision_rows(details), key="curation", description=told)
    return as_result(made)


@task(name="encode", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def encode(job: TunedJob, step: str) -> ArtifactRef:
    """Read, check and encode labelled data or conversations, by the step of their kind, unless that is published and
    intact.
    """
    made = run_step(step, job)
    show_skipped(encoded_details(Store(job.store), made.key))
    return as_result(made)
