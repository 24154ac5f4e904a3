"""Tasks that curate raw text and turn corpora, labelled data and conversations into tokens."""

from typing import Any

from prefect.artifacts import create_table_artifact
from pydantic import BaseModel

from tasks.patience import patient_task
from tasks.showing import TaskLogger, reused, showing
from tasks.stage import run_stage
from tasks.turns import DEVICES, TOKENIZATION, turn
from trainer.common.bad_records import skipped_rows
from trainer.common.display import size
from trainer.config.jobs import PrepareJob
from trainer.config.labelled import TuningJob
from trainer.curation.descriptions import decision_rows, decision_warnings, describe_decisions
from trainer.data.decisions import read_decisions
from trainer.data.encoded import encoded_details
from trainer.data.tokenization import shard_manifests
from trainer.records.plans import PreparedData
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@patient_task("prepare-tokenizer")
def prepare_tokenizer(job: PrepareJob, decisions: ArtifactRef | None = None) -> ArtifactRef:
    """Train or load the tokenizer, unless it is published and intact."""
    return as_result(run_step("tokenizer", job, decisions=decisions))


@patient_task("tokenize-corpus", run_name="tokenize-{corpus}")
def tokenize_corpus(
    job: PrepareJob, corpus: str, tokenizer: ArtifactRef, decisions: ArtifactRef | None = None
) -> ArtifactRef:
    """Tokenize one corpus's kept documents into shards, unless the shards are published and intact."""
    made = run_step("tokenize", job, corpus=corpus, tokenizer=tokenizer, decisions=decisions)
    (manifest,) = shard_manifests(Store(job.store), PreparedData(tokenizer=tokenizer, shards=[made]))
    show_skipped(manifest.details)
    return as_result(made)


def show_skipped(details: dict[str, Any]) -> None:
    """Create a table of the bad records that were skipped in an artifact's input, with the reasons."""
    if rows := skipped_rows(details):
        create_table_artifact(rows, key="skipped-records", description="skipped bad records, with up to three examples")


def run_step(name: str, job: Any, ranks: int = 0, **made: Any) -> ArtifactRef:
    """Build or find a step's artifact, and log which; on `ranks` ranks of the job's training, if given."""
    logger, arguments = TaskLogger(), {"job": job, **made}
    plain = {
        key: each.model_dump(mode="json") if isinstance(each, BaseModel) else each for key, each in arguments.items()
    }
    carried = (ranks, job.engine, job.training.device) if ranks else ()
    with turn(DEVICES if ranks else TOKENIZATION), showing() as show:
        ref = ArtifactRef(**run_stage(name, plain, show, logger, *carried))
    if ref.reused:
        logger.info("reused %s: same inputs", ref.key)
    else:
        logger.info("published %s (%s)", ref.key, size(ref.size))
    return ref


def as_result(ref: ArtifactRef) -> ArtifactRef:
    """A task's result for a published artifact; a reused one is wrapped in the state `Reused`."""
    return reused(ref, f"{ref.key} is published") if ref.reused else ref


@patient_task("curate")
def curate(job: PrepareJob) -> ArtifactRef:
    """Decide which documents to keep, unless the decisions are published and intact."""
    made = run_step("curate", job)
    details = read_decisions(Store(job.store), made.key).details
    summary = "\n\n".join([describe_decisions(details), *decision_warnings(details)])
    create_table_artifact(decision_rows(details), key="curation", description=summary)
    return as_result(made)


@patient_task("encode")
def encode(job: TuningJob) -> ArtifactRef:
    """Read, check and encode the splits of fine-tuning data, unless they are published and intact."""
    made = run_step("encode", job)
    show_skipped(encoded_details(Store(job.store), made.key))
    return as_result(made)


@patient_task("reference", retries=3)
def reference(job: TuningJob, data: ArtifactRef, ranks: int) -> ArtifactRef:
    """Compute the reference model's log-probabilities of the answers, unless they are published."""
    return as_result(run_step("reference", job, ranks, data=data))
