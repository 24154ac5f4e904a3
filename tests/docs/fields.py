"""The paths of all settings."""

from collections.abc import Iterator
from typing import get_origin

from pydantic import BaseModel

from flows.schemas import schema_of
from trainer.config.problems import schemas_in


def fields_of(command: str) -> list[str]:
    """The paths of all settings in a command's configuration."""
    return sorted({path for schema in schema_of(command).values() for path in _paths(schema, "")})


def _paths(schema: type[BaseModel], prefix: str) -> Iterator[str]:
    """The paths of one schema's settings; for a list, those of its first entry."""
    for name, field in schema.model_fields.items():
        path = f"{prefix}{name}"
        for nested in (inside := schemas_in(field.annotation)):
            yield from _paths(nested, f"{path}.0." if get_origin(field.annotation) is list else f"{path}.")
        if not inside:
            yield path
