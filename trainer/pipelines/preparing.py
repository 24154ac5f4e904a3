"""Raw text to everything that training reads: curated, where the job says so, and tokenized."""

from typing import Any

from trainer.config.jobs import PrepareJob
from trainer.data.decisions import corpora_left
from trainer.data.tokenization import PreparedData
from trainer.records.named_steps import Do, look_for
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


def prepare(job: PrepareJob, do: Do) -> PreparedData:
    """The whole way from raw files to shards."""
    decisions = do("curate", job) if job.data.curation is not None else None
    tokenizer = do("tokenizer", job, decisions=decisions)
    corpora = corpora_left(Store(job.store), job.data, decisions)
    shards = [do("tokenize", job, corpus=each.name, tokenizer=tokenizer, decisions=decisions) for each in corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)


def find_prepared(job: PrepareJob) -> PreparedData | None:
    """The job's published decisions, tokenizer and shards, if all exist; whether shards are intact is not looked at."""
    tokenizer = look_for("tokenizer", job)  # first: without it, raw files need not be looked at

    def find(name: str, job: Any, **made: Any) -> ArtifactRef:
        found = tokenizer if name == "tokenizer" else look_for(name, job, check=name != "tokenize", **made)
        if found is None:
            raise _NotThere
        return found

    try:
        return prepare(job, find) if tokenizer is not None else None
    except _NotThere:
        return None


class _NotThere(Exception):
    pass
