"""List or delete a store's unused artifacts; the same as a command is `headrace gc`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.opening import open_flow
from tasks.upkeep import collect_unreached
from trainer.config.files import Overrides
from trainer.config.jobs import GarbageJob
from trainer.registry.leftovers import Garbage


@flow(name="gc", log_prints=True)
def collect_garbage(
    job: GarbageJob,
    set: Annotated[Overrides, SettingsOf(GarbageJob)] = FIRST,  # noqa: A002 - the name on the form
) -> list[Garbage]:
    """List artifacts that no run, champion or pin uses, with their sizes; delete them if the job's `remove` is set."""
    job = open_flow(job, set)
    return collect_unreached(job)


if __name__ == "__main__":
    sys.exit("flows.collect_garbage runs as a deployment; on the command line, use `headrace gc STORE`")
