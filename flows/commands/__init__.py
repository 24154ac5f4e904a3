"""The commands of `headrace`, in the order of its help. Nothing heavy is imported here: see flows/command.py."""

from typing import Annotated

import typer

from flows.commands import jobs, services, starters, stores
from trainer import __version__

app = typer.Typer(
    epilog="Exit status: 0 done, 2 bad input, 75 to be run again, else a crash.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help, which loads in a third of the time
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

    `headrace COMMAND --help` tells more of a command, and of every field of its configuration.
    """
