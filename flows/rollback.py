"""Make the previous champion champion again: `python -m flows.rollback CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from trainer.config.files import Overrides
from trainer.config.jobs import RollbackJob
from trainer.records.shapes import Move
from trainer.registry.promotion import roll_back
from trainer.store.storage import Store


@flow(name="rollback", flow_run_name="{job.name}", log_prints=True)
def roll_back_model(
    job: RollbackJob,
    set: Annotated[Overrides, SettingsOf(RollbackJob)] = FIRST,  # noqa: A002 - the name on the form
) -> Move:
    """Remove the champion of a name, so that the previous one is champion again."""
    job = open_flow(job, set)
    return roll_back(Store(job.store), job.name, job.reason, job.key)


if __name__ == "__main__":
    from flows.command import main

    main(["rollback", *sys.argv[1:]])
