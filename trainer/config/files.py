"""Jobs from YAML files and `key=value` words, and the explanation of every field."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainer.common.errors import ConfigError, reason_of
from trainer.common.formats import plural
from trainer.config.problems import describe_problems, schemas_in, shown, wants_text
from trainer.config.unique_keys import DuplicateKey, parse_yaml

Job = TypeVar("Job", bound=BaseModel)

WORD = r"^[^=]+="
Overrides = Sequence[Annotated[str, Field(pattern=WORD, description="key=value, such as training.max_steps=100")]]
"""Words that replace settings of a job, each by the path of its field."""

NOTHING = ("", "~", "null", "Null", "NULL")
"""How YAML spells that there is no value."""

BOUNDS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


def load_job(schema: type[Job], path: str, overrides: Overrides = ()) -> Job:
    """Read a YAML file, apply `key=value` words to it, and validate the whole. Raises `ConfigError` naming every bad key."""
    return validate_job(schema, read_values(path, overrides, (schema,)), path)


def read_values(path: str, overrides: Overrides = (), schemas: Sequence[type[BaseModel]] = ()) -> dict[str, Any]:
    """The values of a YAML file with `key=value` words applied. Raises `ConfigError`.

    `schemas` are those that the values may be of: a word is taken as it stands where each that knows its field wants text.
    """
    try:
        values = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration {path} cannot be read: {reason_of(error)}") from error
    except DuplicateKey as error:
        raise ConfigError(f"configuration {path}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"configuration {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"configuration {path}: expected keys with values, found {shown(values)}")
    for word in overrides:
        _override(values, word, schemas)
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
        _override(values, word, (type(job),))
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


def explain(schema: type[BaseModel]) -> str:
    """A line for each field: its name, type, bounds, default and meaning."""
    return "\n".join(_lines(schema, ""))


def _override(values: dict[str, Any], word: str, schemas: Sequence[type[BaseModel]]) -> None:
    path, equals, text = word.partition("=")
    if not equals or not path:
        raise ConfigError(f"{word!r} is not key=value, such as training.max_steps=100")
    keys = path.split(".")
    value = _read_text(text) if wants_text(schemas, keys) else _read_yaml(text, word)
    place: Any = values
    for depth in range(1, len(keys)):
        key = _key_in(place, keys[:depth], word)
        if isinstance(place, dict) and place.get(key) is None:
            place[key] = {}
        place = place[key]
    place[_key_in(place, keys, word)] = value


def _read_text(text: str) -> str | None:
    """What a word says where text is wanted: itself, whatever else YAML would read in it; without quotation marks around it."""
    said = text.strip()
    if said in NOTHING:
        return None
    if said[0] in "'\"":
        with suppress(ValueError):
            value = parse_yaml(said)
            return value if isinstance(value, str) else said
    return said


def _read_yaml(text: str, word: str) -> Any:
    try:
        value = parse_yaml(text)
    except DuplicateKey as error:
        raise ConfigError(f"{word!r} cannot be set: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{word!r} cannot be set: {text!r} is not YAML: {error}") from error
    if value is None and text.strip() not in NOTHING:
        quoted = json.dumps(text.strip(), ensure_ascii=False)
        raise ConfigError(f"{word!r} cannot be set: YAML reads {text!r} as nothing; to give it as text, write {quoted}")
    return value


def _key_in(place: Any, keys: list[str], word: str) -> str | int:
    """The last of some keys, as a key or number in `place`, to which the ones before it lead. Raises `ConfigError`."""
    *before, key = keys
    if isinstance(place, dict):
        return key
    where = ".".join(before)
    if not isinstance(place, list):
        raise ConfigError(f"{word!r} cannot be set: {where} is {shown(place)}, which has no keys")
    if not key.isdecimal() or int(key) >= len(place):
        there = f"has {plural(len(place), 'entry', 'entries')}, counted from 0"
        raise ConfigError(f"{word!r} cannot be set: the list {where} {there}; none of them is {key}")
    return int(key)


def _lines(schema: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in schema.model_fields.items():
        nested = schemas_in(field.annotation)
        many = get_origin(field.annotation) is list
        if nested:
            yield f"{prefix}{name}{': a list of' if many else ':'}  ({field.description})"
            yield from _lines(nested[0], f"{prefix}{name}.{'N.' if many else ''}")
        else:
            yield f"  {prefix}{name}  {type_name(field.annotation)}{bounds_of(field)}, {default_of(field)}"
            yield f"        {field.description}"


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
