"""From raw text to shards, as the flows do it: one task after the other."""

from tasks.curation import curate
from tasks.tokenization import prepare_tokenizer, tokenize_corpus
from trainer.config.jobs import PrepareJob
from trainer.corpus.decisions import corpora_left
from trainer.corpus.preparation import PreparedData
from trainer.store.storage import Store


def prepare(job: PrepareJob) -> PreparedData:
    """Curate the raw text if the job says so, train or take the tokenizer, and tokenize every corpus."""
    decisions = curate(job, return_state=True).result() if job.data.curation is not None else None
    tokenizer = prepare_tokenizer(job, decisions, return_state=True).result()
    corpora = corpora_left(Store(job.store), job.data, decisions.key if decisions else None)
    shards = [tokenize_corpus(job, each.name, tokenizer, decisions, return_state=True).result() for each in corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)
