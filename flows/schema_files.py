"""JSON Schemas of the configurations, for editors: a YAML file names one in its first line, relative to itself."""

import json
from pathlib import Path

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from trainer.common.errors import ConfigError, StorageError

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
        raise StorageError(f"cannot write schemas to {folder / FOLDER}: {error.strerror}; name a folder to write to") from error


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
