"""The commands that inspect a store or clean it up. They load Prefect only if a block holds the store's credentials."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from flows.commands.options import Config, JobCommand, Json, Remove, StoreUrl, Words, end

commands = typer.Typer()

RunsAge = Annotated[
    float | None, typer.Option(metavar="DAYS", help="also runs older than this; default: no runs", show_default=False)
]


class Look(StrEnum):
    """Actions of `headrace curation`."""

    show = "show"


Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="also write the comparison as an HTML page")]


@commands.command(cls=JobCommand)
def explain(config: Config, words: Words = None, as_json: Json = False) -> None:
    """Show what a job would reuse, resume or redo, and why."""
    from flows.credentials import take_credentials
    from flows.work import status_of
    from trainer.kinds.kind import load_training_job
    from trainer.pipelines.explain import print_plan

    def work() -> None:
        job = load_training_job(config, words or [])
        take_credentials(job.model_dump_json())
        print_plan(job, as_json)

    end(status_of(work))


@commands.command("list")
def list_(store: StoreUrl, as_json: Json = False) -> None:
    """List a store's runs, newest first."""
    from trainer.registry.listing import print_runs

    _look(store, lambda: print_runs(store, as_json))


@commands.command()
def compare(
    store: StoreUrl,
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="two or more; the others are compared with the first")
    ],
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Compare runs: settings, data, curves, results."""
    from trainer.registry.compare_runs import MOST, print_comparison

    if not 2 <= len(runs) <= MOST:
        raise typer.BadParameter(f"give 2 to {MOST} runs; `headrace list {store}` lists them")
    _look(store, lambda: print_comparison(store, runs, html, as_json))


@commands.command()
def lineage(
    store: StoreUrl,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a run, its final folder, or the name of a champion")],
    files: Annotated[bool, typer.Option("--files", help="list every raw file")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="compare with the present files; status 1 if they changed")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a model's origin, from raw files to its promotion."""
    from trainer.registry.print_store import print_lineage

    _look(store, lambda: print_lineage(store, model, every_file=files, checked=check, as_json=as_json))


@commands.command()
def chat(
    store: StoreUrl,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="the name of a champion, a run, a checkpoint, a folder, or a model on the hub"
        ),
    ],
    beside: Annotated[
        str | None, typer.Option("--beside", metavar="MODEL", help="another model, to compare answers")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="answer this prompt and exit; - reads it from a pipe")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="system message at the start")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the most likely token")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="random seed, if the temperature is not 0")] = 0,
    new_tokens: Annotated[int, typer.Option(min=1, help="maximum tokens of an answer")] = 512,
) -> None:
    """Talk with a model in the terminal, or ask it one question."""

    def answer() -> None:
        from trainer.evaluation.dialogue import Sampling, chat, piped

        asked = piped().read() if prompt == "-" else prompt
        chat(store, [model, *([beside] if beside else [])], asked, Sampling(system, temperature, seed, new_tokens))

    _look(store, answer)


@commands.command()
def push(
    store: StoreUrl,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a run, its final folder, or the name of a champion")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="the repository, OWNER/NAME; created if missing")],
    private: Annotated[bool, typer.Option("--private", help="create a missing repository as private")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the files and their sizes; upload nothing")] = False,
    as_json: Json = False,
) -> None:
    """Upload a finished model and its card to the Hugging Face hub."""
    from trainer.registry.push import push_or_preview

    _look(store, lambda: push_or_preview(store, model, repo, private, dry_run, as_json))


@commands.command()
def curation(
    action: Annotated[Look, typer.Argument(metavar="show", help="the only action", show_default=False)],
    store: StoreUrl,
    reason: Annotated[str | None, typer.Option(metavar="NAME", help="show examples dropped for this reason")] = None,
    document: Annotated[
        str | None, typer.Option(metavar="PATH#N", help="show the Nth document of a file, from 1")
    ] = None,
    corpus: Annotated[str | None, typer.Option(metavar="NAME", help="only this corpus")] = None,
    decisions: Annotated[str | None, typer.Option(metavar="KEY", help="default: the store's newest")] = None,
    examples: Annotated[int, typer.Option(metavar="N", min=1, help="examples of each corpus")] = 5,
    as_json: Json = False,
) -> None:
    """Show what curation dropped, and why."""
    from trainer.curation.print_decisions import print_decisions

    _look(store, lambda: print_decisions(store, reason, document, corpus, decisions, examples, as_json))


@commands.command()
def gc(
    store: StoreUrl,
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", help="default: 7", show_default=False)] = None,
    runs_older_than: RunsAge = None,
    remove: Remove = False,
    as_json: Json = False,
) -> None:
    """List or delete artifacts that no run, champion or pin uses."""
    from trainer.registry.print_store import print_garbage

    _look(store, lambda: print_garbage(store, older_than, runs_older_than, remove, as_json))


@commands.command()
def pin(
    store: StoreUrl,
    key: Annotated[str | None, typer.Argument(help="a run's name, or an artifact, such as shards/NAME")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="remove the pin")] = False,
    as_json: Json = False,
) -> None:
    """Protect a run or artifact from gc, or list the pins."""
    from trainer.registry.print_store import change_pin

    if remove and key is None:
        raise typer.BadParameter("--remove needs a KEY: the pin to remove")
    _look(store, lambda: change_pin(store, key, remove, as_json))


@commands.command()
def leftovers(
    store: StoreUrl,
    older_than: Annotated[float, typer.Option(metavar="HOURS", help="younger files may still be in use")] = 24.0,
    remove: Remove = False,
    as_json: Json = False,
) -> None:
    """List or delete files that killed processes left behind."""
    from trainer.registry.print_store import print_leftovers

    _look(store, lambda: print_leftovers(store, older_than, remove, as_json))


def _look(store: str, show: Callable[[], int | None]) -> NoReturn:
    """Load the store's credentials, call `show`, and exit with the status that it returns."""
    from flows.credentials import take_credentials
    from flows.work import status_of

    def work() -> int | None:
        take_credentials(store)
        return show()

    end(status_of(work))
