"""YAML and JSON that people write, in which a key may stand once only: libraries keep the last and drop the rest silently."""

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

from trainer.common.errors import brief

JSON_MARK = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}]')
"""In a valid JSON text: a string, with a colon after it if it is a key; or where an object begins or ends."""


class DuplicateKey(ValueError):
    """A key that stands twice in one mapping; the message names it and both lines."""


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises `ValueError` if it is no YAML, `DuplicateKey` if one stands twice in a mapping."""
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
    """The value of a JSON text. Raises `ValueError` if it is no JSON, `DuplicateKey` if one stands twice in an object."""
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
    """Compares the keys while a mapping is read: later, `<<` has put others among them, which a key may replace."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                _note(lines, self.construct_object(key), key.start_mark.line + 1)
        return node


def _note(lines: dict[Any, int], key: Hashable, line: int) -> None:
    """Write down the line of a key. Raises `DuplicateKey` if it has one already."""
    if key in lines:
        raise DuplicateKey(f"the key {key!r} stands twice, in lines {lines[key]} and {line}: only one of them can count")
    lines[key] = line
