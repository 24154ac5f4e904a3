"""Raw corpora to verified token shards: `python -m flows.prepare_data CONFIG.yaml [key=value ...]`."""

import sys

from prefect import flow

from tasks.opening import open_flow
from tasks.tokenization import prepare_tokenizer, tokenize_corpus
from trainer.config.files import Overrides
from trainer.config.jobs import PrepareJob
from trainer.corpus.preparation import PreparedData


@flow(name="prepare-data", log_prints=True)
def prepare_data(job: PrepareJob, set: Overrides = ()) -> PreparedData:  # noqa: A002 - the name on the form
    """Train or take the tokenizer and tokenize every corpus into numbered shards; work already done is reused."""
    job = open_flow(job, set)
    tokenizer = prepare_tokenizer(job, return_state=True).result()
    shards = [tokenize_corpus(job, corpus.name, tokenizer, return_state=True).result() for corpus in job.data.corpora]
    return PreparedData(tokenizer=tokenizer, shards=shards)


if __name__ == "__main__":
    from flows.cli import main
    from flows.showing import show_prepared

    sys.exit(main(prepare_data, PrepareJob, show_prepared))
