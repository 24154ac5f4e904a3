"""The parameter `set` of the flows: words that replace settings of the job, first on Prefect's form.

Prefect's server compares a flow run's parameters with the form when the run is made. So a word that names no setting of
the job is refused there, and not once a worker has started the run.
"""

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from trainer.config.schema import options_of

# Prefect numbers the parameters from 0, and sorts by that.
FIRST: Any = Field(default=(), json_schema_extra={"position": -1})
"""No words, on top of the form."""

EXPECTED = "KEY=VALUE, where KEY is a setting of the job, such as store"


class SettingsOf:
    """Annotates words with the type of the job whose settings they replace."""

    def __init__(self, job: Any) -> None:
        self._pattern = f"^{_path([job])}="

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # What stands after `else` is in the server's answer; a pattern would be there whole, with all settings.
        found = handler(core)
        found["items"] |= {"if": {"pattern": self._pattern}, "else": {"enum": [EXPECTED]}}
        return found


def _path(types: Sequence[Any]) -> str:
    """A regular expression for a path into a value that may be of each of some types; none leads into plain values."""
    names: dict[str, list[Any]] = {}
    for option in (option for each in types for option in options_of(each)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            for name, field in option.model_fields.items():
                names.setdefault(re.escape(name), []).append(field.annotation)
        elif get_origin(option) is list:
            names.setdefault(r"\d+", []).extend(get_args(option))
        elif get_origin(option) is dict or option is Any:
            return "[^=]+"
    paths = (f"{name}(?:\\.{deeper})?" if (deeper := _path(inside)) else name for name, inside in names.items())
    return f"(?:{'|'.join(paths)})" if names else ""
