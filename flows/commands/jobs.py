"""The commands that run a flow: a configuration, words that replace its settings, and what Prefect is loaded for."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flows.commands.options import Config, DryRun, JobCommand, Json, OptionalConfig, Seeds, Verify, Words, end
from flows.schemas import TITLE, schema_of

if TYPE_CHECKING:
    from flows.work import Found

commands = typer.Typer()


@commands.command(cls=JobCommand)
def run(
    config: Config, words: Words = None, verify: Verify = False, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Raw text to an evaluated model, the whole way."""

    def find() -> "Found":
        from flows.data_to_model import data_to_model
        from flows.showing import show_outcome

        return data_to_model, show_outcome

    _start("run", config, words, find, dry_run, as_json, verify)


@commands.command(cls=JobCommand)
def finetune(
    config: Config, words: Words = None, seeds: Seeds = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Labelled data, conversations or pairs of answers, and a model to a tuned model."""

    def find() -> "Found":
        from flows.finetune import finetune as finetune_flow
        from flows.showing import show_finetuned

        return finetune_flow, show_finetuned

    _start("finetune", config, words, find, dry_run, as_json, seeds=seeds)


@commands.command(cls=JobCommand)
def prepare(
    config: Config, words: Words = None, verify: Verify = False, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Only the tokenizer and the shards."""

    def find() -> "Found":
        from flows.prepare_data import prepare_data
        from flows.showing import show_prepared

        return prepare_data, show_prepared

    _start("prepare", config, words, find, dry_run, as_json, verify)


@commands.command(cls=JobCommand)
def train(
    config: Config, words: Words = None, verify: Verify = False, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Only the training, on shards that are prepared."""

    def find() -> "Found":
        from flows.showing import show_run
        from flows.train_model import train_model

        return train_model, show_run

    _start("train", config, words, find, dry_run, as_json, verify)


@commands.command(cls=JobCommand)
def evaluate(config: Config, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Measure any checkpoint on held-out text or labelled examples."""

    def find() -> "Found":
        from flows.evaluate_model import evaluate_model
        from flows.showing import show_evaluation

        return evaluate_model, show_evaluation

    _start("evaluate", config, words, find, dry_run, as_json)


@commands.command(cls=JobCommand)
def predict(config: Config, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Classes or numbers of new texts, by a finished classifier."""

    def find() -> "Found":
        from flows.predict import predict as predict_flow
        from flows.showing import show_predictions

        return predict_flow, show_predictions

    _start("predict", config, words, find, dry_run, as_json)


@commands.command(cls=JobCommand)
def promote(config: OptionalConfig = None, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Make a run's model the champion under a name, by hand."""

    def find() -> "Found":
        from flows.promote import promote_model
        from flows.showing import show_move

        return promote_model, show_move

    _start("promote", *_file_and_words(config, words), find, dry_run, as_json)


@commands.command(cls=JobCommand)
def rollback(
    config: OptionalConfig = None, words: Words = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Make the champion before the present one champion again."""

    def find() -> "Found":
        from flows.rollback import roll_back_model
        from flows.showing import show_move

        return roll_back_model, show_move

    _start("rollback", *_file_and_words(config, words), find, dry_run, as_json)


def _file_and_words(config: str | None, words: list[str] | None) -> tuple[str, list[str]]:
    """The path of the configuration and the words after it, of a command line that may leave the file out."""
    from trainer.config.files import COMMAND_LINE

    if config is None:
        return COMMAND_LINE, []
    if "=" in config and not Path(config).exists():
        return COMMAND_LINE, [config, *(words or [])]
    return config, words or []


def _start(
    command: str,
    config: str,
    words: list[str] | None,
    find: "Callable[[], Found]",
    dry: bool,
    as_json: bool,
    verify: bool = False,
    seeds: str | None = None,
) -> None:
    from flows.work import carry_out

    settings = [*(words or []), *(["verify=true"] if verify else [])]
    end(carry_out(schema_of(command)[TITLE], config, settings, find, dry, as_json, seeds))
