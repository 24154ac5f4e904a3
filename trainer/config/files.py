"""Reading of jobs from YAML files and `key=value` words, and help texts for their fields. Duplicate keys are errors."""

import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainer.common.display import plural
from trainer.common.errors import ConfigError, brief, reason_of
from trainer.config.problems import describe_problems, find_truths, shown
from trainer.config.schema import allows_list_of_text, allows_text, schemas_in, wants_text

JSON_MARK = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}]')
"""In a valid JSON text: a string, followed by a colon if it is a key; or the start or end of an object."""


class DuplicateKey(ValueError):
    """A key occurs twice in one mapping; the message contains the key and both lines."""


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; raise `ValueError` if invalid, `DuplicateKey` if a mapping repeats a key."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem or error.context}{place}") from error
    except yaml.YAMLError as error:
        raise ValueError(brief(error)) from error


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise `ValueError` if invalid, `DuplicateKey` if an object repeats a key."""
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    objects: list[dict[str, int]] = []
    for mark in JSON_MARK.finditer(text):
        if mark[0] == "{":
            objects.append({})
        elif mark[0] == "}":
            objects.pop()
        elif mark[2]:
            _note(objects[-1], json.loads(mark[1], strict=False), text.count("\n", 0, mark.start()) + 1)
    return values


class _Loader(yaml.SafeLoader):
    """Detects duplicate keys while a mapping is parsed, before `<<` merges in keys that may be overridden."""

    def scan_flow_scalar(self, style: str) -> Any:
        """A quoted text; two escapes that are a surrogate pair, as in JSON, are one character."""
        token: Any = super().scan_flow_scalar(style)
        token.value = token.value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return token

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                _note(lines, self.construct_object(key), key.start_mark.line + 1)
        return node


SCALARS = {
    "tag:yaml.org,2002:bool": r"(true|True|TRUE|false|False|FALSE)$",
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$",
    "tag:yaml.org,2002:float": r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$"
    r"|[-+]?[0-9]+[eE][-+]?[0-9]+$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$",
}
"""Booleans and numbers as in YAML 1.2 and JSON. In YAML 1.1, on and no are booleans, 2026-01-01 is a date, 1e-5 is
text, 010 is 8 and 1:30 is 90. Here on, no and 010 are text, which pydantic converts for fields of booleans and numbers.
"""

_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag.endswith((":null", ":merge"))]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), "-+.0123456789tTfF")


def _note(lines: dict[Any, int], key: Hashable, line: int) -> None:
    """Record the line of a key; raise `DuplicateKey` if it already has one."""
    if key in lines:
        raise DuplicateKey(f"duplicate key {key!r} in lines {lines[key]} and {line}; remove one of them")
    lines[key] = line


ENTRY = re.compile(r"\[(\d+)\]")

NOTHING = ("", "~", "null", "Null", "NULL")
"""YAML's spellings of null."""


def set_value(values: dict[str, Any], word: str, schemas: Sequence[type[BaseModel]]) -> None:
    """Apply one `key=value` word to the values of a file of one of the schemas; raise `ConfigError`."""
    path, equals, text = word.partition("=")
    if not equals or not path:
        hint = "; a YAML file is given before all settings" if Path(word).suffix in (".yaml", ".yml") else ""
        raise ConfigError(f"{word!r} is not key=value, such as training.max_steps=100{hint}")
    if ENTRY.search(path):
        dotted = ENTRY.sub(r".\1", path)
        raise ConfigError(f"{word!r} cannot be set: write the index of a list entry after a dot: {dotted}={text}")
    keys = path.split(".")
    if wants_text(schemas, keys):
        value: Any = _read_text(text)
    else:
        value = _read_yaml(text, word)
        if value is None and text.strip() not in NOTHING:
            hint = _as_text(path, text.strip(), schemas)
            raise ConfigError(f"{word!r} cannot be set: YAML reads {text!r} as a comment, so the value is empty{hint}")
    place: Any = values
    for depth in range(1, len(keys)):
        key = _key_in(place, keys[:depth], word)
        if isinstance(place, dict) and place.get(key) is None:
            place[key] = {}
        place = place[key]
    place[_key_in(place, keys, word)] = value


def _read_text(text: str) -> str | None:
    """Return the value for a text field: the text as written, without YAML parsing, but without enclosing quotes."""
    if text in NOTHING:
        return None
    if text[0] in "'\"":
        with suppress(yaml.YAMLError):
            node = yaml.compose(text)
            if isinstance(node, yaml.ScalarNode) and node.end_mark.index == len(text):
                return str(node.value)
    return text


def _read_yaml(text: str, word: str) -> Any:
    try:
        return parse_yaml(text)
    except DuplicateKey as error:
        raise ConfigError(f"{word!r} cannot be set: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{word!r} cannot be set: {text!r} is not YAML: {error}") from error


def _as_text(path: str, text: str, schemas: Sequence[type[BaseModel]]) -> str:
    """Return a hint how to quote a value on the command line if the field accepts text."""
    keys, quoted = path.split("."), json.dumps(text, ensure_ascii=False)
    if allows_text(schemas, keys):
        return f"; to pass it as text, quote it: {shlex.quote(f'{path}={quoted}')}"
    if allows_list_of_text(schemas, keys):
        return f"; a list with one text is {shlex.quote(f'{path}=[{quoted}]')}"
    return ""


def _key_in(place: Any, keys: list[str], word: str) -> str | int:
    """Return the last of the keys as a key or index of `place`, the value under the other keys; raise `ConfigError`."""
    *before, key = keys
    if isinstance(place, dict):
        return key
    where = ".".join(before)
    if not isinstance(place, list):
        raise ConfigError(f"{word!r} cannot be set: {where} is {shown(place)}, which has no keys")
    if not key.isdecimal() or int(key) >= len(place):
        entries = f"{plural(len(place), 'entry', 'entries')}, numbered from 0"
        raise ConfigError(f"{word!r} cannot be set: the list {where} has {entries}; {key} is not one of them")
    return int(key)


Job = TypeVar("Job", bound=BaseModel)

Overrides = Sequence[Annotated[str, Field(description="key=value, such as training.max_steps=100")]]
"""`key=value` words that replace settings of a job; a key is the path of a field."""

COMMAND_LINE = "on the command line"
"""Used instead of a file's path for a configuration that consists of `key=value` words only."""

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def load_job(schema: type[Job], path: str, overrides: Overrides = ()) -> Job:
    """Read a YAML file, apply `key=value` words, and validate; the `ConfigError` raised lists every invalid key."""
    path, overrides = split_settings(path, overrides)
    return validate_job(schema, read_values(path, overrides, (schema,)), path)


def split_settings(path: str, overrides: Overrides = ()) -> tuple[str, Overrides]:
    """The path of the YAML file and the settings. If the first word is itself a setting, there is no file: the path is
    then `COMMAND_LINE`.
    """
    if "=" in path and not Path(path).exists():
        return COMMAND_LINE, [path, *overrides]
    return path, overrides


def read_values(path: str, overrides: Overrides = (), schemas: Sequence[type[BaseModel]] = ()) -> dict[str, Any]:
    """Return the values of a YAML file, or of `COMMAND_LINE`, with `key=value` words applied; raise `ConfigError`.

    `schemas` are the possible schemas. A word's value is not parsed as YAML if its field is text in each schema that
    has the field.
    """
    values = {} if path == COMMAND_LINE else _read_file(path)
    for word in overrides:
        set_value(values, word, schemas)
    return values


def _read_file(path: str) -> dict[str, Any]:
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
    try:
        return {key: _unshared(each) for key, each in values.items()}
    except RecursionError as error:
        raise ConfigError(f"configuration {path}: an alias refers to a value that contains it") from error


def _unshared(value: Any) -> Any:
    """Copy the values that YAML aliases share, so that a word changes only one of them."""
    if isinstance(value, dict):
        return {key: _unshared(each) for key, each in value.items()}
    return [_unshared(each) for each in value] if isinstance(value, list) else value


def validate_job(schema: type[Job], values: Any, where: str) -> Job:
    """Validate values read from `where`; raise `ConfigError`."""
    truths = dict(find_truths(schema, values))
    try:
        job = schema.model_validate(values)
    except ValidationError as error:
        others = [each for each in describe_problems(schema, error) if each.partition(":")[0] not in truths]
        raise ConfigError(f"configuration {where}: {'; '.join([*truths.values(), *others])}") from error
    if truths:
        raise ConfigError(f"configuration {where}: {'; '.join(truths.values())}")
    return job


def override(job: Job, words: Overrides) -> Job:
    """Return the job with `key=value` words applied; the `ConfigError` raised lists every invalid key."""
    if not words:
        return job
    values = job.model_dump(mode="json", exclude_unset=True)
    for word in words:
        set_value(values, word, (type(job),))
    return validate_job(type(job), values, f"`job` with `set` {', '.join(words)}")


def add_config(parser: ArgumentParser) -> None:
    """Add the arguments `config`, a YAML file, and `overrides`, the `key=value` words that replace its settings."""
    parser.add_argument("config", help="a YAML file, or the first key=value if there is no file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings that replace the file's"
    )


def add_verify(parser: ArgumentParser) -> None:
    """Add `--verify` to a command that prepares data; it is parsed to a list of words, like `overrides`."""
    parser.add_argument(
        "--verify", action="append_const", const="verify=true", default=[],
        help="first read all published shards and compare them with their checksums",
    )  # fmt: skip


def explain(schema: type[BaseModel], names: Sequence[str] = ()) -> str:
    """Describe each field, or those in `names`: its name, type, bounds, default and meaning."""
    if not names:
        return "\n".join(text for _, text in _explained(schema, ""))
    texts = dict(_explained(schema, ""))
    return "\n".join(fill(line, 79, subsequent_indent=" " * 8) for name in names for line in texts[name].split("\n"))


def _explained(schema: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the description of each field."""
    for name, field in schema.model_fields.items():
        nested = schemas_in(field.annotation)
        many = get_origin(field.annotation) is list
        if nested:
            yield f"{prefix}{name}", f"{prefix}{name}{': a list of' if many else ':'}  ({field.description})"
            for each in nested:  # several if they differ by `kind`
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
    found = [f"{SIGNS[name]} {getattr(m, name)}" for m in field.metadata for name in SIGNS if hasattr(m, name)]
    return f" {' and '.join(found)}" if found else ""


def default_of(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "optional" if field.default is None else f"default {field.default}"
