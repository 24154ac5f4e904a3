"""Which configuration each command reads, and JSON Schemas of these for editors. Loads nothing else."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from flows import READ_TOO, READS, RUNNING
from trainer.common.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pydantic import BaseModel


TITLE = "fields of the configuration"


def schema_of(command: str) -> "dict[str, type[BaseModel]]":
    """What a command reads: schemas, each under a title; for `explain`, those of all kinds of training."""
    if command == "explain":
        from trainer.records.run_kinds import RUN_KINDS

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


FOLDER = "schemas"
"""Where the schemas lie, beside the configurations."""


def file_name(schema: type[BaseModel]) -> str:
    """What a schema's file is called, such as pipeline.json."""
    return f"{schema.__name__.removesuffix('Job').lower()}.json"


def as_text(schema: type[BaseModel]) -> str:
    """A schema as the text of its file."""
    told = {"$schema": GenerateJsonSchema.schema_dialect, **schema.model_json_schema()}
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def write_schemas(schemas: list[type[BaseModel]], folder: Path) -> None:
    """Write schemas beside the configurations of a folder, in the place of earlier versions of them.

    Raises `ConfigError` before anything is written if a file of somebody else's is in the way, and `StorageError`.
    """
    try:
        for schema in schemas:
            _require_ours(folder / FOLDER / file_name(schema), schema)
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for schema in schemas:
            (folder / FOLDER / file_name(schema)).write_text(as_text(schema), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot write schemas to {folder / FOLDER}: {error.strerror}; name a folder to write to"
        ) from error


def _require_ours(path: Path, schema: type[BaseModel]) -> None:
    """Raise `ConfigError` if a file is there that is no version of the schema: each has its title."""
    marks = {"$schema": GenerateJsonSchema.schema_dialect, "title": schema.__name__}
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        there = None
    if not isinstance(there, dict) or {key: there.get(key) for key in marks} != marks:
        raise ConfigError(
            f"{path} is there already, and is not headrace's schema {schema.__name__}: move it, or name another folder"
        )
