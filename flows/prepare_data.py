"""Turn raw corpora into verified token shards: `python -m flows.prepare_data CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from tasks.pipeline import AsTasks
from trainer.config.files import Overrides
from trainer.config.jobs import PrepareJob
from trainer.kinds.pretraining.kind import prepare
from trainer.records.plans import PreparedData


@flow(name="prepare-data", flow_run_name="{job.name}", log_prints=True)
def prepare_data(
    job: PrepareJob,
    set: Annotated[Overrides, SettingsOf(PrepareJob)] = FIRST,  # noqa: A002 - the name on the form
) -> PreparedData:
    """Curate, train or load the tokenizer, and tokenize each corpus into numbered shards; reuse finished work."""
    return prepare(open_flow(job, set), AsTasks().make)


if __name__ == "__main__":
    from flows.command import main

    main(["prepare", *sys.argv[1:]])
