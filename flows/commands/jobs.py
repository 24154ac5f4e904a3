"""The commands that run a flow on a configuration."""

import typer

from flows.commands.options import Config, DryRun, JobCommand, Json, Seeds, Verify, Words, end

commands = typer.Typer()


@commands.command(cls=JobCommand)
def run(
    config: Config, words: Words = None, verify: Verify = False, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Run the whole pipeline, from raw text to an evaluated model."""
    _start("run", config, words, dry_run, as_json, verify)


@commands.command(cls=JobCommand)
def finetune(
    config: Config, words: Words = None, seeds: Seeds = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Fine-tune a model on labelled data, conversations or pairs."""
    _start("finetune", config, words, dry_run, as_json, seeds=seeds)


@commands.command(cls=JobCommand)
def prepare(
    config: Config, words: Words = None, verify: Verify = False, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Prepare only the tokenizer and the shards."""
    _start("prepare", config, words, dry_run, as_json, verify)


@commands.command(cls=JobCommand)
def train(
    config: Config, words: Words = None, verify: Verify = False, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Train only, on prepared shards."""
    _start("train", config, words, dry_run, as_json, verify)


@commands.command(cls=JobCommand)
def evaluate(config: Config, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Evaluate a checkpoint on held-out text or labelled examples."""
    _start("evaluate", config, words, dry_run, as_json)


@commands.command(cls=JobCommand)
def predict(config: Config, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Predict classes or numbers of new texts."""
    _start("predict", config, words, dry_run, as_json)


@commands.command(cls=JobCommand)
def promote(config: Config, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Make a run's model the champion under a name."""
    _start("promote", config, words, dry_run, as_json)


@commands.command(cls=JobCommand)
def rollback(config: Config, words: Words = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Make the previous champion champion again."""
    _start("rollback", config, words, dry_run, as_json)


def _start(
    command: str,
    config: str,
    words: list[str] | None,
    dry: bool,
    as_json: bool,
    verify: bool = False,
    seeds: str | None = None,
) -> None:
    from flows.work import carry_out

    settings = [*(words or []), *(["verify=true"] if verify else [])]
    end(carry_out(command, config, settings, dry, as_json, seeds))
