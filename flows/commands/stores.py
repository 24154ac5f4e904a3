"""The commands that look at a store, or clean it up: they load no Prefect, unless a block holds the store's
credentials.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from flows.commands.options import Config, JobCommand, Json, Remove, StoreUrl, Words, end

commands = typer.Typer()

RunsAge = Annotated[
    float | None, typer.Option(metavar="DAYS", help="remove runs too; default: none, however old", show_default=False)
]


class Look(StrEnum):
    """What `headrace curation` does."""

    show = "show"


Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="write the comparison as a page, too")]


@commands.command(cls=JobCommand)
def explain(config: Config, words: Words = None, as_json: Json = False) -> None:
    """What a job would reuse, continue or do again, and why."""
    from flows.credentials import take_credentials
    from flows.work import status_of
    from trainer.kinds.kind import load_training_job
    from trainer.pipelines.explain import tell

    def work() -> None:
        job = load_training_job(config, words or [])
        take_credentials(job.model_dump_json())
        tell(job, as_json)

    end(status_of(work))


@commands.command("list")
def list_(store: StoreUrl, as_json: Json = False) -> None:
    """The runs of a store, a line each, newest first."""
    from trainer.registry.listing import tell

    _look(store, lambda: tell(store, as_json))


@commands.command()
def compare(
    store: StoreUrl,
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="the others are compared with the first")],
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: settings, data, curves, results."""
    from trainer.registry.compare_runs import MOST, tell

    if not 2 <= len(runs) <= MOST:
        raise typer.BadParameter(f"name 2 to {MOST} runs; `headrace list {store}` shows which there are")
    _look(store, lambda: tell(store, runs, html, as_json))


@commands.command()
def lineage(
    store: StoreUrl,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="a run, its final folder, or a name that has a champion")
    ],
    files: Annotated[bool, typer.Option("--files", help="list every raw file")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="compare with what is there now; status 1 if it changed")
    ] = False,
    as_json: Json = False,
) -> None:
    """Everything behind a model, from raw files to its promotion."""
    from trainer.registry.tell_store import tell_lineage

    _look(store, lambda: tell_lineage(store, model, every_file=files, checked=check, as_json=as_json))


@commands.command()
def chat(
    store: StoreUrl,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="a name that has a champion, a run, a checkpoint, a folder, or a name of the hub"
        ),
    ],
    beside: Annotated[
        str | None, typer.Option("--beside", metavar="MODEL", help="another model, whose answers stand beside")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="answer this, and end; - reads it from a pipe")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="what the model is told first")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time")] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="of what is drawn where the temperature is not 0")
    ] = 0,
    new_tokens: Annotated[int, typer.Option(min=1, help="tokens of an answer at most")] = 512,
) -> None:
    """Talk with a model in the terminal, or ask it one thing."""

    from flows.credentials import take_credentials
    from flows.work import status_of

    def work() -> None:
        from trainer.evaluation.dialogue import Sampling, chat, piped

        take_credentials(store)
        asked = piped().read() if prompt == "-" else prompt
        chat(store, [model, *([beside] if beside else [])], asked, Sampling(system, temperature, seed, new_tokens))

    end(status_of(work))


@commands.command()
def push(
    store: StoreUrl,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="a run, its final folder, or a name that has a champion")
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="the repository, OWNER/NAME; made if there is none")],
    private: Annotated[
        bool, typer.Option("--private", help="a repository that is made is seen by its owner alone")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the files and their sizes, and send nothing")
    ] = False,
    as_json: Json = False,
) -> None:
    """A finished model with its card, sent to the Hugging Face hub."""
    from trainer.registry.push import tell

    _look(store, lambda: tell(store, model, repo, private, dry_run, as_json))


@commands.command()
def curation(
    action: Annotated[Look, typer.Argument(metavar="show", show_default=False)],
    store: StoreUrl,
    reason: Annotated[str | None, typer.Option(metavar="NAME", help="examples of what goes for it")] = None,
    document: Annotated[str | None, typer.Option(metavar="PATH#N", help="a file's Nth document, from 1")] = None,
    corpus: Annotated[str | None, typer.Option(metavar="NAME", help="of this corpus alone")] = None,
    decisions: Annotated[str | None, typer.Option(metavar="KEY", help="default: the newest of the store")] = None,
    examples: Annotated[int, typer.Option(metavar="N", min=1, help="of each corpus")] = 5,
    as_json: Json = False,
) -> None:
    """Which documents went, why, and what each was compared with."""
    from trainer.curation.tell_decisions import tell

    _look(store, lambda: tell(store, reason, document, corpus, decisions, examples, as_json))


@commands.command()
def gc(
    store: StoreUrl,
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", help="default: 7", show_default=False)] = None,
    runs_older_than: RunsAge = None,
    remove: Remove = False,
    as_json: Json = False,
) -> None:
    """What no run, champion or pin reaches: list it, or --remove it."""
    from trainer.registry.tell_store import tell_garbage

    _look(store, lambda: tell_garbage(store, older_than, runs_older_than, remove, as_json))


@commands.command()
def pin(
    store: StoreUrl,
    key: Annotated[str | None, typer.Argument(help="a run's name, or an artifact, such as shards/NAME")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="take the pin away")] = False,
    as_json: Json = False,
) -> None:
    """Keep a run or an artifact from gc; without KEY, list the pins."""
    from trainer.registry.tell_store import change_pin

    if remove and key is None:
        raise typer.BadParameter("--remove needs a KEY: the pin to take away")
    _look(store, lambda: change_pin(store, key, remove, as_json))


@commands.command()
def leftovers(
    store: StoreUrl,
    older_than: Annotated[float, typer.Option(metavar="HOURS", help="what is younger may still be at work")] = 24.0,
    remove: Remove = False,
    as_json: Json = False,
) -> None:
    """What killed processes left behind: list it, or --remove it."""
    from trainer.registry.tell_store import tell_leftovers

    _look(store, lambda: tell_leftovers(store, older_than, remove, as_json))


def _look(store: str, tell: Callable[[], int | None]) -> NoReturn:
    """End with the status that `tell` returns, once the store's credentials are there."""
    from flows.credentials import take_credentials
    from flows.work import status_of

    def work() -> int | None:
        take_credentials(store)
        return tell()

    end(status_of(work))
