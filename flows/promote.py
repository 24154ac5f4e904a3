"""Promote a run's model to champion by hand: `python -m flows.promote CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from trainer.config.files import Overrides
from trainer.config.jobs import PromoteJob
from trainer.records.run_names import find_run_name
from trainer.records.shapes import Move
from trainer.registry.promotion import find_measured, promote
from trainer.store.storage import Store


@flow(name="promote", flow_run_name="{job.name}", log_prints=True)
def promote_model(
    job: PromoteJob,
    set: Annotated[Overrides, SettingsOf(PromoteJob)] = FIRST,  # noqa: A002 - the name on the form
) -> Move:
    """Make a run's final model the champion under a name, without checking the gate."""
    job = open_flow(job, set)
    store = Store(job.store)
    run = f"runs/{find_run_name(store, job.run, exact=True)}"
    found = find_measured(store, run)
    scores, measured_on = (found.figures(), found.measured_on) if found else ({}, None)
    return promote(store, job.name, run, scores, job.reason, measured_on, job.another_use)


if __name__ == "__main__":
    from flows.command import main

    main(["promote", *sys.argv[1:]])
