"""`key=value` words: a path of keys, and what is to stand there, read as YAML where it is not text."""

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from trainer.common.errors import ConfigError
from trainer.common.formats import plural
from trainer.config.field_types import allows_list_of_text, allows_text, wants_text
from trainer.config.problems import shown
from trainer.config.unique_keys import DuplicateKey, parse_yaml

ENTRY = re.compile(r"\[(\d+)\]")

NOTHING = ("", "~", "null", "Null", "NULL")
"""How YAML spells that there is no value."""


def set_value(values: dict[str, Any], word: str, schemas: Sequence[type[BaseModel]]) -> None:
    """Set what a word says in the values of a file, which may be of any of the schemas. Raises `ConfigError`."""
    path, equals, text = word.partition("=")
    if not equals or not path:
        raise ConfigError(f"{word!r} is not key=value, such as training.max_steps=100")
    if ENTRY.search(path):
        dotted = ENTRY.sub(r".\1", path)
        raise ConfigError(f"{word!r} cannot be set: the number of a list's entry stands after a dot: {dotted}={text}")
    keys = path.split(".")
    if wants_text(schemas, keys):
        value: Any = _read_text(text)
    else:
        value = _read_yaml(text, word)
        if value is None and text.strip() not in NOTHING:
            hint = _as_text(path, text.strip(), schemas)
            raise ConfigError(f"{word!r} cannot be set: YAML reads {text!r} as a comment, which is nothing{hint}")
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
        return parse_yaml(text)
    except DuplicateKey as error:
        raise ConfigError(f"{word!r} cannot be set: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{word!r} cannot be set: {text!r} is not YAML: {error}") from error


def _as_text(path: str, text: str, schemas: Sequence[type[BaseModel]]) -> str:
    """How to give a value as text on the command line, where text can stand."""
    keys, quoted = path.split("."), json.dumps(text, ensure_ascii=False)
    if allows_text(schemas, keys):
        return f"; in quotes it is text: {shlex.quote(f'{path}={quoted}')}"
    if allows_list_of_text(schemas, keys):
        return f"; a list of one text is {shlex.quote(f'{path}=[{quoted}]')}"
    return ""


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
