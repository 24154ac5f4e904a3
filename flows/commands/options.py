"""Arguments and options that several commands take, and how a command ends."""

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from flows.schemas import schema_of


class JobCommand(TyperCommand):
    """A command that reads a configuration: its help explains every field."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from trainer.config.files import explain

        for title, schema in schema_of(str(self.name)).items():
            formatter.write(f"\n{title}:\n\n{explain(schema)}\n")


def end(status: int) -> NoReturn:
    """End a command with an exit status."""
    raise typer.Exit(status)


Config = Annotated[str, typer.Argument(metavar="CONFIG", help="a YAML file", show_default=False)]
OptionalConfig = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG", help="a YAML file; not needed where all settings are given as key=value", show_default=False
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="key=value", help="settings that replace the file's", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check everything, print the plan, and start nothing")]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="read all shards that are published already and compare them with their checksums first"),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", metavar="0,1,2", help="a run with each of these seeds, and the mean and spread of their figures",
        show_default=False,
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="print it as JSON, for programs")]
StoreUrl = Annotated[str, typer.Argument(metavar="STORE", help="a folder or a URL", show_default=False)]
Remove = Annotated[bool, typer.Option("--remove", help="remove what is listed")]
