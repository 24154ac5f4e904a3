"""The commands that look at a store, or clean it up: they load no Prefect."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import Config, JobCommand, Json, Remove, StoreUrl, Words, end

commands = typer.Typer()

RunsAge = Annotated[
    float | None, typer.Option(metavar="DAYS", help="remove runs too; default: none, however old", show_default=False)
]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="write the comparison as a page, too")]


@commands.command(cls=JobCommand)
def explain(config: Config, words: Words = None, as_json: Json = False) -> None:
    """What a job would reuse, continue or do again, and why."""
    from trainer.explain import tell

    end(tell(config, words or [], as_json))


@commands.command("list")
def list_(store: StoreUrl, as_json: Json = False) -> None:
    """The runs of a store, a line each, newest first."""
    from trainer.compare import tell

    end(tell(store, [], as_json=as_json))


@commands.command()
def compare(
    store: StoreUrl,
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="the others are compared with the first")],
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: settings, data, curves, results."""
    from trainer.compare import MOST, tell

    if not 2 <= len(runs) <= MOST:
        raise typer.BadParameter(f"name 2 to {MOST} runs; `headrace list {store}` shows which there are")
    end(tell(store, runs, html, as_json))


@commands.command()
def lineage(
    store: StoreUrl,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a run, its final folder, or a name that has a champion")],
    files: Annotated[bool, typer.Option("--files", help="list every raw file")] = False,
    check: Annotated[bool, typer.Option("--check", help="compare with what is there now; status 1 if it changed")] = False,
    as_json: Json = False,
) -> None:
    """Everything behind a model, from raw files to its promotion."""
    from trainer.lineage import tell

    end(tell(store, model, every_file=files, checked=check, as_json=as_json))


@commands.command()
def gc(
    store: StoreUrl,
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", help="default: 7", show_default=False)] = None,
    runs_older_than: RunsAge = None,
    remove: Remove = False,
    as_json: Json = False,
) -> None:
    """What no run, champion or pin reaches: list it, or --remove it."""
    from trainer.garbage import tell_garbage

    end(tell_garbage(store, older_than, runs_older_than, remove, as_json))


@commands.command()
def pin(
    store: StoreUrl,
    key: Annotated[str | None, typer.Argument(help="a run's name, or an artifact, such as shards/NAME")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="take the pin away")] = False,
    as_json: Json = False,
) -> None:
    """Keep a run or an artifact from gc; without KEY, list the pins."""
    from trainer.garbage import change_pin

    if remove and key is None:
        raise typer.BadParameter("--remove needs a KEY: the pin to take away")
    end(change_pin(store, key, remove, as_json))


@commands.command()
def leftovers(
    store: StoreUrl,
    older_than: Annotated[float, typer.Option(metavar="HOURS", help="what is younger may still be at work")] = 24.0,
    remove: Remove = False,
    as_json: Json = False,
) -> None:
    """What killed processes left behind: list it, or --remove it."""
    from trainer.leftovers import tell

    end(tell(store, older_than, remove, as_json))
