"""The commands that start and stop a Prefect server and a worker on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import typer

from flows.commands.options import end
from trainer.common.errors import EXIT_BAD_INPUT

commands = typer.Typer()

SCRIPT = Path(__file__).parents[2] / "deployments" / "local.py"


@commands.command()
def up() -> None:
    """Start a Prefect server and a worker here, all flows deployed.

    In a checkout of headrace only, as `make up` does it, with the sample corpora in data/raw. Settings are variables of the
    environment: PREFECT_HOME (database and logs; default: .prefect in the checkout), LISTEN, PORT, DB, SCHEDULES, NOTIFY,
    CREDENTIALS; deployments/local.py explains them.
    """
    end(_run("up"))


@commands.command()
def down() -> None:
    """Stop them again; runs save first."""
    end(_run("down"))


def _run(command: str) -> int:
    if not SCRIPT.exists():
        typer.echo(
            f"there is no {SCRIPT}: `headrace {command}` needs a checkout of headrace, installed with `pip install -e .`. "
            "With the package alone, `prefect server start` starts a server, which shows the runs of any `headrace` whose "
            "environment has its address as PREFECT_API_URL",
            err=True,
        )
        return EXIT_BAD_INPUT
    if command == "up":  # as in the Makefile: the deployments' own jobs read them
        status = _run_there("-m", "trainer.sample_corpora", "data/raw")
        if status:
            return status
    return _run_there(str(SCRIPT), command)


def _run_there(*arguments: str) -> int:
    """Run the interpreter in the checkout, with the environment that `make` gives; returns its exit status."""
    checkout = SCRIPT.parents[1]
    env = {"PREFECT_HOME": str(checkout / ".prefect"), "DO_NOT_TRACK": "1", **os.environ, "PWD": str(checkout)}
    return subprocess.run([sys.executable, *arguments], cwd=checkout, env=env, check=False).returncode
