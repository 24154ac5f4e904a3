"""From raw text to shards, as the flows do it: one task after the other."""

from tasks.curation import curate
from tasks.tokenization import prepare_tokenizer, tokenize_corpus
from trainer.config.jobs import PrepareJob
from trainer.corpus.preparation import PreparedData


def prepare(job: PrepareJob) -> PreparedData:
    """Curate the raw text if the job says so, train or take the tokenizer, and tokenize every corpus."""
    decisions = curate(job, return_state=True).result() if job.data.curation is not None else None
    tokenizer = prepare_tokenizer(job, decisions, return_state=True).result()
    shards = [tokenize_corpus(job, corpus, tokenizer, decisions, return_state=True).result() for corpus in job.corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)
