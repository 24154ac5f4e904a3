"""A command whose flow never checks for stops: it opens a store's job, writes a file as a sign, and does not end."""

import sys
import time
from pathlib import Path

from prefect import flow

from flows.work import status_of
from tasks.opening import open_flow
from trainer.common.stopping import install_signal_handlers, leave
from trainer.config.jobs import GarbageJob


@flow(name="stuck")
def stuck(store: str) -> None:
    open_flow(GarbageJob(store=store), ())
    Path(store, "opened").touch()
    time.sleep(600)


if __name__ == "__main__":
    install_signal_handlers(0.5)
    from flows.running import run

    sys.exit(leave(status_of(lambda: run(stuck, sys.argv[1]))))
