"""Which configuration each command reads. Loads the schemas, and nothing more."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flows import READ_TOO, READS, RUNNING

if TYPE_CHECKING:
    from pydantic import BaseModel

TITLE = "fields of the configuration"


def schema_of(command: str) -> "dict[str, type[BaseModel]]":
    """What a command reads: schemas, each under a title; for `explain`, those of all kinds of training."""
    if command == "explain":
        from trainer.records.kinds import RUN_KINDS

        return {f"fields for {kind.name}": kind.job for kind in RUN_KINDS}
    found = {TITLE: _load(READS[command])}
    return found | {f"{TITLE} with data.task: {task}": _load(each) for task, each in READ_TOO.get(command, {}).items()}


def schema_for(schema: "type[BaseModel]", values: Mapping[str, Any]) -> "type[BaseModel]":
    """The schema of some values that a command reads by this one: another, if they name the `data.task` of that."""
    data = values.get("data")
    task = data.get("task") if isinstance(data, dict) else None
    return read_too(schema).get(task, schema) if isinstance(task, str) else schema


def read_too(schema: "type[BaseModel]") -> "dict[str, type[BaseModel]]":
    """What a command that reads this schema reads besides, by `data.task`."""
    others = (others for command, others in READ_TOO.items() if _load(READS[command]) is schema)
    return {task: _load(each) for task, each in next(others, {}).items()}


def schemas() -> "list[type[BaseModel]]":
    """What all commands read, each once."""
    return list(dict.fromkeys(schema for command in RUNNING for schema in schema_of(command).values()))


def _load(named: tuple[str, str]) -> "type[BaseModel]":
    module, schema = named
    loaded: type[BaseModel] = getattr(importlib.import_module(module), schema)
    return loaded


def reader_of(schema: "type[BaseModel]") -> str:
    """The command that reads a schema's files: the first in the order of the help, where several do."""
    return next(command for command in RUNNING if schema in schema_of(command).values())
