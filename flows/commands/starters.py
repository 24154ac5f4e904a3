"""The commands that write a commented configuration to fill in, and schemas for editors."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows import FLOW_COMMANDS
from flows.commands.options import end
from flows.schemas import TITLE, schema_of, schemas

commands = typer.Typer()

TEMPLATES = Path(__file__).parents[1] / "starters"


class Starter(StrEnum):
    """Kinds of starter configurations."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"
    chat = "chat"
    preference = "preference"
    lora = "lora"
    s3 = "s3"


RUN_BY = {
    Starter.text: "run", Starter.jsonl: "run", Starter.csv: "finetune", Starter.chat: "finetune",
    Starter.preference: "finetune", Starter.lora: "finetune",
    Starter.s3: "run",
}  # fmt: skip
"""The command that reads each kind's file."""

Command = Annotated[str | None, typer.Argument(metavar="COMMAND", help="the command that reads the file, such as run")]
Folder = Annotated[Path | None, typer.Option("--write", metavar="FOLDER", help="write all schemas to FOLDER/schemas")]


@commands.command()
def new(
    kind: Annotated[
        Starter,
        typer.Argument(
            help="for text files, JSON lines, a labelled CSV file, conversations, preference pairs, conversations with "
            "LoRA, or text in an S3 bucket"
        ),
    ],
    file: Annotated[
        Path | None, typer.Argument(help="default: KIND.yaml; its schema is written to schemas/ beside it")
    ] = None,
) -> None:
    """Write a commented configuration to start from."""
    from flows.work import status_of

    path = file or Path(f"{kind}.yaml")
    end(status_of(lambda: _write_starter(kind, path)))


@commands.command()
def schema(command: Command = None, write: Folder = None) -> None:
    """Print or write JSON Schemas of the configurations, for editors."""
    from flows.schemas import as_text, write_schemas
    from flows.work import status_of

    if write is not None:
        if command is not None:
            raise typer.BadParameter(f"--write writes the schemas of all commands: remove {command!r}")
        folder = write
        end(status_of(lambda: write_schemas(schemas(), folder)))
    if command not in FLOW_COMMANDS:
        raise typer.BadParameter(f"{_unfit(command)} ({', '.join(FLOW_COMMANDS)}), or --write FOLDER for all schemas")
    typer.echo(as_text(schema_of(command)[TITLE]), nl=False)


def _unfit(command: str | None) -> str:
    """The message for a missing command, or for one without a schema of its own."""
    if command is None:
        return "give a command"
    if command == "explain":
        return "explain reads the configurations of run and finetune: give a command with its own schema"
    return f"{command!r} reads no configuration: give a command that does"


def _write_starter(kind: Starter, path: Path) -> None:
    from flows.schemas import write_schemas
    from trainer.common.display import show
    from trainer.common.errors import ConfigError, PipelineError, StorageError

    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write((TEMPLATES / f"{kind}.yaml").read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise ConfigError(f"{path} already exists: choose another file name") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; choose a file in a writable folder") from error
    try:
        write_schemas(list(schema_of(RUN_BY[kind]).values()), path.parent)
    except PipelineError:
        path.unlink()  # else a second attempt would be refused because the file exists
        raise
    show(
        f"wrote {path}: edit the lines marked with <-, then run `headrace {RUN_BY[kind]} {path} --dry-run` to see the "
        "plan\n"
    )
