"""What is looked at in a pretrained model before a library loads it: nothing of it is run, and nothing is unpickled."""

import json
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError, reason_of

SETTINGS = ("config.json", "tokenizer_config.json")
"""Files that may name Python code of the model's repository, which libraries would run or ask whether to."""


def check_settings(name: str) -> None:
    """Raise `ConfigError` if a model's folder, or a model of the hub, needs code of its own repository to be run."""
    for file in SETTINGS:
        path = _find(name, file)
        settings = read_object(path) if path else {}
        if "auto_map" in settings:
            raise ConfigError(
                f"{file} of model {name!r} has an auto_map ({settings['auto_map']!r}): it names Python code of the model's own "
                "repository, which is never run here. If transformers knows the model by its model_type, remove auto_map from "
                "a local copy and name that folder; else choose another model"
            )
        attention = settings.get("attn_implementation")
        if isinstance(attention, str) and "/" in attention:
            raise ConfigError(
                f"{file} of model {name!r} names {attention!r} as its attention implementation: that is code of the hub, which "
                "is never run here; remove attn_implementation from a local copy and name that folder"
            )


def _find(name: str, file: str) -> Path | None:
    """A file of a model: in its folder, or fetched from the hub. None if there is none, or it cannot be had."""
    if Path(name).is_dir():
        return Path(name, file) if Path(name, file).is_file() else None
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(name, file)
    except OSError:
        return None  # whatever loads the model says what is wrong with its name or the network
    return Path(found) if found else None


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file of a model holds. Raises `ConfigError` if that is no object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}")
    return value
