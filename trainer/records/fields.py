"""Differences between nested values: only the fields that differ, by their dotted paths."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from trainer.common.display import NOTHING

ABSENT = object()
"""The value of a missing field, as opposed to null."""


class Difference(NamedTuple):
    """A field, and its value in each run."""

    path: str
    values: tuple[Any, ...]

    def row(self) -> list[str]:
        """The field as a row of text."""
        return [printable(self.path), *map(show, self.values)]


def find_differences(nested: Sequence[dict[str, Any]]) -> list[Difference]:
    """The leaves that differ, sorted by path. Lists of named items are compared by name."""
    flat = [flatten(each) for each in nested]
    paths = sorted({path for each in flat for path in each})
    found = (Difference(path, tuple(each.get(path, ABSENT) for each in flat)) for path in paths)
    return [each for each in found if not all_same(each.values)]


def list_changes(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """Changes of a record, as `training.max_steps: 300 -> 400`. A missing field equals null, and 1 equals 1.0."""
    found = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += list_changes(old, new, f"{path}{key}.")
        elif old != new:
            found.append(f"{path}{key}: {old} -> {new}")
    return found


def flatten(value: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The leaves of a nested value by path: `training.max_steps`, `data.corpora.code.format`."""
    flat: dict[str, Any] = {}
    for key, each in value.items():
        here = f"{path}{key}"
        if isinstance(each, dict):
            flat |= flatten(each, f"{here}.")
        elif names := names_in(each):
            flat[here] = names
            flat |= flatten({name: {**one, "name": ABSENT} for name, one in zip(names, each, strict=True)}, f"{here}.")
        else:
            flat[here] = each
    return {place: each for place, each in flat.items() if each is not ABSENT}


def all_same(values: Iterable[Any]) -> bool:
    """Whether all values are equal and of one type: true is not 1."""
    return len({json.dumps(value, sort_keys=True) if value is not ABSENT else "" for value in values}) == 1


def show(value: Any) -> str:
    """A value as text on one line."""
    if value is ABSENT:
        return NOTHING
    return (
        printable(value) if isinstance(value, str) else printable(json.dumps(value, ensure_ascii=False, sort_keys=True))
    )


def printable(text: str) -> str:
    """A text without terminal control characters."""
    return text if text.isprintable() else json.dumps(text)


def names_in(value: Any) -> list[str]:
    """The names, or else kinds, of the items of a list, if they are unique; empty for any other value."""
    if not isinstance(value, list) or not all(
        isinstance(each, dict) and each.keys() & {"name", "kind"} for each in value
    ):
        return []
    names = [each["name"] if "name" in each else each["kind"] for each in value]
    return names if len(set(names)) == len(names) else []
