"""Jobs from YAML files and `key=value` words, and the explanation of every field."""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainer.common.errors import ConfigError, reason_of
from trainer.config.field_types import schemas_in
from trainer.config.problems import describe_problems, shown
from trainer.config.unique_keys import DuplicateKey, parse_yaml
from trainer.config.words import set_value

Job = TypeVar("Job", bound=BaseModel)

Overrides = Sequence[Annotated[str, Field(description="key=value, such as training.max_steps=100")]]
"""Words that replace settings of a job, each by the path of its field."""

COMMAND_LINE = "on the command line"
"""Stands for the path of a configuration that is given in words alone."""

BOUNDS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


def load_job(schema: type[Job], path: str, overrides: Overrides = ()) -> Job:
    """Read a YAML file, apply `key=value` words to it, and validate the whole. Raises `ConfigError` naming every bad key."""
    return validate_job(schema, read_values(path, overrides, (schema,)), path)


def read_values(path: str, overrides: Overrides = (), schemas: Sequence[type[BaseModel]] = ()) -> dict[str, Any]:
    """The values of a YAML file, or of `COMMAND_LINE`, with `key=value` words applied. Raises `ConfigError`.

    `schemas` are those that the values may be of: a word is taken as it stands where each that knows its field wants text.
    """
    values = {} if path == COMMAND_LINE else _read_file(path)
    for word in overrides:
        set_value(values, word, schemas)
    return values


def _read_file(path: str) -> dict[str, Any]:
    try:
        values = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "; the YAML file comes first, and then settings such as this" if "=" in path else ""
        raise ConfigError(f"configuration {path} cannot be read: {reason_of(error)}{hint}") from error
    except DuplicateKey as error:
        raise ConfigError(f"configuration {path}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"configuration {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"configuration {path}: expected keys with values, found {shown(values)}")
    return values


def validate_job(schema: type[Job], values: Any, where: str) -> Job:
    """Validate values that came from `where`. Raises `ConfigError`."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"configuration {where}: {'; '.join(describe_problems(schema, error))}") from error


def override(job: Job, words: Overrides) -> Job:
    """A job with `key=value` words applied to what it was given. Raises `ConfigError` naming every bad key."""
    if not words:
        return job
    values = job.model_dump(mode="json", exclude_unset=True)
    for word in words:
        set_value(values, word, (type(job),))
    return validate_job(type(job), values, f"`job` with `set` {', '.join(words)}")


def add_config(parser: ArgumentParser) -> None:
    """Have a command take a configuration: `config`, a YAML file, and `overrides`, words that replace settings of it."""
    parser.add_argument("config", help="a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")


def add_verify(parser: ArgumentParser) -> None:
    """Have a command that prepares data take `--verify`, for the setting of that name: `verify`, words as `overrides` are."""
    parser.add_argument(
        "--verify", action="append_const", const="verify=true", default=[],
        help="read all shards that are published already and compare them with their checksums, before anything else is done",
    )  # fmt: skip


def explain(schema: type[BaseModel], names: Sequence[str] = ()) -> str:
    """A line for each field, or for those of some names: its name, type, bounds, default and meaning."""
    if not names:
        return "\n".join(text for _, text in _explained(schema, ""))
    texts = dict(_explained(schema, ""))
    return "\n".join(fill(line, 79, subsequent_indent=" " * 8) for name in names for line in texts[name].split("\n"))


def _explained(schema: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Names of fields, and what explains each."""
    for name, field in schema.model_fields.items():
        nested = schemas_in(field.annotation)
        many = get_origin(field.annotation) is list
        if nested:
            yield f"{prefix}{name}", f"{prefix}{name}{': a list of' if many else ':'}  ({field.description})"
            for each in nested:  # several where a `kind` tells them apart
                yield from _explained(each, f"{prefix}{name}.{'N.' if many else ''}")
        else:
            kind = f"{type_name(field.annotation)}{bounds_of(field)}, {default_of(field)}"
            yield f"{prefix}{name}", f"  {prefix}{name}  {kind}\n        {field.description}"


def type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return "|".join(map(str, get_args(annotation)))
    if origin in (Union, UnionType):
        return " or ".join(type_name(part) for part in get_args(annotation) if part is not NoneType)
    if origin is list:
        return f"list of {type_name(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    if origin is not None:
        return type_name(get_args(annotation)[0])
    return {"int": "whole number", "float": "number", "str": "text", "bool": "true|false"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def bounds_of(field: FieldInfo) -> str:
    found = [f"{SIGNS[type(m)]} {getattr(m, BOUNDS[type(m)])}" for m in field.metadata if type(m) in SIGNS]
    return f" {' and '.join(found)}" if found else ""


def default_of(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "optional" if field.default is None else f"default {field.default}"
