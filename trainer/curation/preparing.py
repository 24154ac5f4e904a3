"""Raw text to everything that training reads: curated, where the job says so, and tokenized."""

from trainer.common.progress import Progress
from trainer.config.corpora import DataConfig
from trainer.config.jobs import PrepareJob
from trainer.corpus import preparation
from trainer.corpus.decisions import corpora_left
from trainer.corpus.preparation import PreparedData, prepare_corpus, prepare_tokenizer
from trainer.corpus.tokenizer_making import find_tokenizer
from trainer.store.storage import Store


def prepare(job: PrepareJob, progress: Progress) -> PreparedData:
    """The whole way from raw files to shards, in this process and its workers."""
    decisions = None
    if job.data.curation is not None:
        from trainer.curation.curating import curate

        decisions = curate(job, progress).key
    tokenizer = prepare_tokenizer(job, progress, decisions)
    corpora = corpora_left(Store(job.store), job.data, decisions)
    shards = [prepare_corpus(job, corpus.name, tokenizer.key, progress, decisions) for corpus in corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)


def find_prepared(job: PrepareJob) -> PreparedData | None:
    """The job's published decisions, tokenizer and shards, if all exist; whether they are intact is not looked at."""
    store, decisions = Store(job.store), None
    if find_tokenizer(store, job.data) is None:  # looked for first: raw files need not be looked at then
        return None
    if job.data.curation is not None and (decisions := find_decided(store, job.data)) is None:
        return None
    return preparation.find_prepared(job, decisions)


def find_decided(store: Store, data: DataConfig) -> str | None:
    """The key of the published decisions about the raw text as it is now; None if it is to be decided anew."""
    from trainer.curation.curating import find_decisions
    from trainer.curation.plan import make_plan

    key = make_plan(store, data).key
    return key if find_decisions(store, key) is not None else None
