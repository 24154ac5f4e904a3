"""A run's model becomes the champion by hand: `python -m flows.promote CONFIG.yaml [key=value ...]`."""

import sys

from prefect import flow

from tasks.opening import open_flow
from trainer.config.files import Overrides
from trainer.config.jobs import PromoteJob
from trainer.store.storage import Store
from trainer.upkeep.gate import Move, figures
from trainer.upkeep.promotion import find_measured, promote


@flow(name="promote", log_prints=True)
def promote_model(job: PromoteJob, set: Overrides = ()) -> Move:  # noqa: A002 - the name on the form
    """Make a run's final model the champion under a name, whatever the gate says."""
    job = open_flow(job, set)
    store = Store(job.store)
    run = f"runs/{job.run}"
    found = find_measured(store, run)
    return promote(store, job.name, run, figures(found), job.reason, found.measured_on if found else None)


if __name__ == "__main__":
    from flows.cli import main
    from flows.showing import show_move

    sys.exit(main(promote_model, PromoteJob, show_move))
