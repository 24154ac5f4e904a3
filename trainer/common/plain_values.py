"""Values as JSON, for programs that read what a command prints."""

import json
from typing import Any

from pydantic_core import to_jsonable_python

from trainer.common.showing import show


def show_json(value: Any) -> None:
    """Print a value as JSON: models and named tuples as objects, times in ISO 8601, figures that are no numbers as null."""
    plain = to_jsonable_python(_named(value), inf_nan_mode="null")
    show(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def _named(value: Any) -> Any:
    """The value with the names of named tuples, which JSON would write as mere lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(each) for name, each in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    return value
