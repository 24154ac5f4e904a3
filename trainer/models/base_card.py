"""What a base model is: its names, and license and language from its model card."""

import logging
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from trainer.common.errors import brief
from trainer.config.runs import CardConfig
from trainer.store.names import CARD

log = logging.getLogger(__name__)

MOST_BYTES = 2**20
"""Characters of a model card that are read."""

CACHED = re.compile(r"models--([\w.-]+?)(?:--([\w.-]+))?/snapshots/[0-9a-f]+")
"""The path of a model in the hub's local cache."""


def describe_base(name: str, folder: Path, origin: Literal["store", "folder", "hub"]) -> dict[str, Any]:
    """A base model's name as the job gives it, its name on the hub or None, and license and language from its card."""
    hub = name if origin == "hub" else None
    if origin == "folder" and (cached := CACHED.search(str(folder.resolve()))):
        hub = "/".join(part for part in cached.groups() if part)
    return {"name": name, "origin": origin, "hub": hub, **read_card(folder).model_dump()}


def read_card(folder: Path) -> CardConfig:
    """License and language from the front matter of a folder's model card, as far as they are there."""
    try:
        with open(folder / CARD, encoding="utf-8") as file:
            text = file.read(MOST_BYTES)
        matter = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else {}
    except FileNotFoundError:
        return CardConfig()
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        log.warning(
            "%s cannot be read (%s), so the license and the languages in it are not recorded: correct it, or set "
            "card.license and card.language", folder / CARD, brief(error),
        )  # fmt: skip
        return CardConfig()
    metadata = matter if isinstance(matter, dict) else {}
    language = metadata.get("language")
    return CardConfig(
        **_accepted("license", metadata.get("license")),
        **_accepted("language", [language] if isinstance(language, str) else language),
    )


def _accepted(field: str, value: Any) -> dict[str, Any]:
    """The field with its value, or nothing if the value is invalid."""
    try:
        CardConfig.model_validate({field: value})
    except ValidationError:
        return {}
    return {field: value}
