"""Arguments and options shared by several commands."""

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from flows.schemas import schema_of

TEXT = ("store", "name", "data.corpora.N.paths", "data.corpora.N.format", "data.tokenizer.vocab_size")
TRAINING = ("training.global_batch", "training.learning_rate")
TUNING = ("store", "name", "data.source", "data.train")

CHANGED: dict[str, tuple[str, ...]] = {
    "PipelineJob": (*TEXT, "model.config", "training.max_steps", "training.context", *TRAINING),
    "PrepareJob": (
        *TEXT, "data.corpora.N.text_field", "data.tokenizer.path", "data.shards.num_shards", "data.validation_fraction",
        "data.workers",
    ),
    "FinetuneJob": (*TUNING, "data.text_columns", "data.label_column", "model.pretrained", "training.epochs",
    *TRAINING),
    "EvaluateJob": (
        "store", "checkpoint", "shards", "context", "precision", "device", "evaluation.batch", "evaluation.max_windows",
        "evaluation.prompts", "evaluation.new_tokens",
    ),
    "PredictJob": (
        "store", "name", "model", "data.source", "data.paths", "data.text_columns", "data.id_column", "batch",
        "precision",
        "device",
    ),
}  # fmt: skip
"""The settings that most people change, by job schema, for schemas with many settings."""

ALL = "--all"


class JobCommand(TyperCommand):
    """A command that reads a configuration. Its help explains common settings, with `--all` every setting.

    Settings are `key=value` words, not options.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from trainer.config.problems import setting_of_option

        ctx.meta[ALL] = ALL in args
        if ALL in args:
            return super().parse_args(ctx, ["--help"])
        if any(word.startswith("--") for word in args):
            options = [name for parameter in self.get_params(ctx) for name in parameter.opts]
            meant = setting_of_option(list(schema_of(str(self.name)).values()), args, options)
            if meant is not None:
                raise typer.BadParameter(f"write settings as key=value, without dashes: {meant}")
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from trainer.config.files import explain

        for title, schema in schema_of(str(self.name)).items():
            few = () if ctx.meta[ALL] else CHANGED.get(schema.__name__, ())
            formatter.write(f"\n{title}{' (common settings)' if few else ''}:\n\n{explain(schema, few)}\n")
            if few:
                formatter.write(f"\n`headrace {self.name} {ALL}` explains all settings.\n")
                break


def end(status: int) -> NoReturn:
    """End a command with an exit status."""
    raise typer.Exit(status)


Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="a YAML file, or the first key=value if there is no file", show_default=False
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="key=value", help="settings that override the file's", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check everything and print the plan; start nothing")]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="first read all published shards and compare them with their checksums"),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", metavar="0,1,2", help="one run with each seed; prints the mean and deviation of their figures",
        show_default=False,
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
StoreUrl = Annotated[
    str,
    typer.Argument(
        metavar="STORE", help="a folder or a URL", show_default=False,
        parser=lambda text: text.removeprefix("store="),  # the spelling of commands that read a configuration
    ),
]  # fmt: skip
Remove = Annotated[bool, typer.Option("--remove", help="delete the listed items")]
