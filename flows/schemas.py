"""Which configuration each command reads. Loads the schemas, and nothing more."""

import importlib
from typing import TYPE_CHECKING

from flows import READS, RUNNING

if TYPE_CHECKING:
    from pydantic import BaseModel

TITLE = "fields of the configuration"


def schema_of(command: str) -> "dict[str, type[BaseModel]]":
    """What a command reads: its schema, under a title; for `explain`, those of all kinds of training."""
    if command == "explain":
        from trainer.records.kinds import RUN_KINDS

        return {f"fields for {kind.name}": kind.job for kind in RUN_KINDS}
    module, schema = READS[command]
    return {TITLE: getattr(importlib.import_module(module), schema)}


def reader_of(schema: "type[BaseModel]") -> str:
    """The command that reads a schema's files: the first in the order of the help, where several do."""
    return next(command for command in RUNNING if schema in schema_of(command).values())
