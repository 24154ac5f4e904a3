"""The commands that start and stop a Prefect server and a worker on this machine."""

import subprocess
import sys
from contextlib import suppress

import typer

from flows.commands.options import end
from trainer.common.stopping import blocked_stops

commands = typer.Typer()


@commands.command()
def up() -> None:
    """Start a Prefect server and a worker here, and deploy all flows.

    The default jobs of the deployments that pretrain read sample corpora from data/raw in the current folder, which is
    created if it does not exist; those of finetune and predict need what `make finetune` writes. All write to
    data/store. Environment variables are the settings: PREFECT_HOME (database and logs;
    default: .prefect in the current folder), LISTEN, PORT, DB, SCHEDULES, NOTIFY, CREDENTIALS; see
    docs/how-to/deploy.md.
    """
    end(_run("up"))


@commands.command()
def down() -> None:
    """Stop them; runs save a checkpoint first."""
    end(_run("down"))


def _run(command: str) -> int:
    """Run a command of `deployments.local`; on Ctrl-C, which reaches it too, wait until it has said so and ended."""
    with suppress(KeyboardInterrupt), blocked_stops():  # the child unblocks them after its imports
        # -P: import the installed package, whatever the current folder holds.
        process = subprocess.Popen([sys.executable, "-P", "-m", "deployments.local", command])
    while True:
        with suppress(KeyboardInterrupt):
            return process.wait()
