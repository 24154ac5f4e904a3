"""Run stages like the tasks."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from tasks.stage import run_stage
from tests.processes import cores
from tests.support import data_values
from trainer.common.progress import Update

log = logging.getLogger("stage")


class Prepared(NamedTuple):
    """A job's values, and the references to its prepared data."""

    values: dict[str, Any]
    data: dict[str, Any]


def ignore(update: Update) -> None:
    """Show progress nowhere."""


def run(
    name: str, arguments: dict[str, Any], ranks: int = 1, show: Callable[[Update], None] = ignore
) -> dict[str, Any]:
    """Run a stage with one core per rank."""
    with cores(ranks):
        return run_stage(name, arguments, show, log, ranks)


def prepare(values: dict[str, Any]) -> dict[str, Any]:
    """The data of a job, prepared in stages as in the flows."""
    job = data_values(values)
    tokenizer = run("tokenizer", {"job": job})
    names = [corpus["name"] for corpus in values["data"]["corpora"]]
    shards = [run("tokenize", {"job": job, "corpus": name, "tokenizer": tokenizer}) for name in names]
    return {"tokenizer": tokenizer, "shards": shards}
