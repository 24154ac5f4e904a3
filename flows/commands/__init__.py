"""The commands of `headrace`, in the help's order. Imports nothing heavy (see flows/command.py)."""

from typing import Annotated

import typer

from flows.commands import jobs, services, starters, stores
from trainer import __version__

app = typer.Typer(
    epilog="Exit status: 0 done, 2 bad input, 75 stopped (run it again), other: crash.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help loads in a third of the time
    pretty_exceptions_enable=False,
)

for group in (starters, jobs, stores, services):
    app.add_typer(group.commands)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """From raw text to an evaluated language model.

    `headrace COMMAND --help` describes a command and its configuration.
    """
