"""The commands that start and stop a Prefect server and a worker on this machine."""

import os
import sys
from typing import NoReturn

import typer

commands = typer.Typer()


@commands.command()
def up() -> None:
    """Start a Prefect server and a worker here, and deploy all flows.

    The deployments' default jobs read sample corpora from data/raw in the current folder, which is created if it does
    not exist, and write to data/store. Environment variables are the settings: PREFECT_HOME (database and logs;
    default: .prefect in the current folder), LISTEN, PORT, DB, SCHEDULES, NOTIFY, CREDENTIALS; see
    docs/how-to/deploy.md.
    """
    _become("up")


@commands.command()
def down() -> None:
    """Stop them; runs save a checkpoint first."""
    _become("down")


def _become(command: str) -> NoReturn:
    """Replace this process, so that Ctrl-C reaches only the one that can put things in order."""
    # -P: import the installed package, whatever the current folder holds.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "deployments.local", command])
