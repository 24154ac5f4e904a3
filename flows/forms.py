"""The parameter `set` of the flows: `key=value` words that replace settings of the job, first on Prefect's form.

Prefect's server validates a flow run's parameters against the form when the run is created. It therefore refuses a word
with an unknown setting before a worker starts the run.
"""

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from trainer.config.schema import options_of

# Prefect numbers the parameters from 0 and sorts by these numbers.
FIRST: Any = Field(default=(), json_schema_extra={"position": -1})
"""Default of `set`: no words; shown first on the form."""

EXPECTED = "KEY=VALUE, where KEY is a setting of the job, such as store"


class SettingsOf:
    """Annotation of words with the type of the job whose settings they replace."""

    def __init__(self, job: Any) -> None:
        self._pattern = f"^{_path([job])}="

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # The server's error shows the content of `else`. With a plain pattern it would show the regex of all settings.
        found = handler(core)
        found["items"] |= {"if": {"pattern": self._pattern}, "else": {"enum": [EXPECTED]}}
        return found


def _path(types: Sequence[Any]) -> str:
    """Regular expression for setting paths into a value of any of some types; empty if none has settings."""
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
