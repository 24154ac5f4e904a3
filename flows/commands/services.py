"""The commands that start and stop a Prefect server and a worker on this machine."""

import subprocess
import sys

import typer

from flows.commands.options import end

commands = typer.Typer()


@commands.command()
def up() -> None:
    """Start a Prefect server and a worker here, all flows deployed.

    The deployments' own jobs read sample corpora, which are written to data/raw in the current folder if there is no
    such folder yet, and write to data/store. Settings are variables of the environment: PREFECT_HOME (database and
    logs; default: .prefect in the current folder), LISTEN, PORT, DB, SCHEDULES, NOTIFY, CREDENTIALS;
    docs/how-to/deploy.md explains them.
    """
    end(_run("up"))


@commands.command()
def down() -> None:
    """Stop them again; runs save first."""
    end(_run("down"))


def _run(command: str) -> int:
    # -P: what is installed, whatever the current folder holds.
    return subprocess.run([sys.executable, "-P", "-m", "deployments.local", command], check=False).returncode
