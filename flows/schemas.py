"""The configuration that each command reads, and its JSON Schema for editors. Imports nothing heavy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from flows import FLOW_COMMANDS
from trainer.common.errors import ConfigError, StorageError
from trainer.config.kinds import KINDS, kinds_read_by, load, marked

TITLE = "fields of the configuration"


def schema_of(command: str) -> dict[str, type[BaseModel]]:
    """The schemas that a command reads, by title; for `explain`, those of all kinds of training."""
    if command == "explain":
        return {f"fields for {kind.name}": kind.schema for kind in KINDS}
    if (reads := FLOW_COMMANDS[command].reads) is not None:
        return {TITLE: load(reads)}
    first, *others = kinds_read_by(command)
    return {TITLE: first.schema} | {f"{TITLE} with data.{kind.mark}: {kind.value}": kind.schema for kind in others}


def schema_for(schema: "type[BaseModel]", values: Mapping[str, Any]) -> "type[BaseModel]":
    """The schema for values: the one whose mark they have, among those read together with `schema`, else `schema`."""
    others = read_with(schema)
    found: type[BaseModel] = next((kind.schema for kind in marked(values) if kind.schema in others), schema)
    return found


def read_with(schema: "type[BaseModel]") -> "list[type[BaseModel]]":
    """All schemas read by the command that reads this one."""
    command = next((kind.command for kind in KINDS if kind.schema is schema), None)
    return [schema] if command is None else [kind.schema for kind in kinds_read_by(command)]


def schemas() -> "list[type[BaseModel]]":
    """The schemas of all commands, each once."""
    return list(dict.fromkeys(schema for command in FLOW_COMMANDS for schema in schema_of(command).values()))


def reader_of(schema: "type[BaseModel]") -> str:
    """The command that reads a schema's files; the first in the help's order if there are several."""
    return next(command for command in FLOW_COMMANDS if schema in schema_of(command).values())


FOLDER = "schemas"
"""The folder of schemas, beside the configurations."""


def file_name(schema: type[BaseModel]) -> str:
    """The name of a schema's file, such as pipeline.json."""
    return f"{schema.__name__.removesuffix('Job').lower()}.json"


def as_text(schema: type[BaseModel]) -> str:
    """A schema as the text of its file."""
    content = {"$schema": GenerateJsonSchema.schema_dialect, **schema.model_json_schema()}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_schemas(schemas: list[type[BaseModel]], folder: Path) -> None:
    """Write schemas into `folder`/schemas, replacing earlier versions.

    Raises `ConfigError`, before writing anything, if another file has a schema's name, and `StorageError` if writing
    fails.
    """
    try:
        for schema in schemas:
            _require_ours(folder / FOLDER / file_name(schema), schema)
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for schema in schemas:
            (folder / FOLDER / file_name(schema)).write_text(as_text(schema), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot write schemas to {folder / FOLDER}: {error.strerror}; use a writable folder"
        ) from error


def _require_ours(path: Path, schema: type[BaseModel]) -> None:
    """Raise `ConfigError` if `path` exists and is not a version of the schema; each version has the schema's title."""
    marks = {"$schema": GenerateJsonSchema.schema_dialect, "title": schema.__name__}
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        there = None
    if not isinstance(there, dict) or {key: there.get(key) for key in marks} != marks:
        raise ConfigError(
            f"{path} exists and is not headrace's schema {schema.__name__}: move it, or use another folder"
        )
