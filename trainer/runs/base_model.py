"""The pretrained model behind a run as a model card tells of it: its name on the hub, and what its own card says."""

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from trainer.config.runs import CardConfig
from trainer.store.names import CARD

MOST_BYTES = 2**20
"""A model card that is larger is none."""

CACHED = re.compile(r"models--([\w.-]+?)(?:--([\w.-]+))?/snapshots/[0-9a-f]+")
"""Where the hub's local cache keeps a model."""


def describe_base(name: str, folder: Path, origin: Literal["store", "folder", "hub"]) -> dict[str, Any]:
    """A base model's name as the job has it, its name on the hub or None, and license and language as its card says them."""
    hub = name if origin == "hub" else None
    if origin == "folder" and (cached := CACHED.search(str(folder.resolve()))):
        hub = "/".join(part for part in cached.groups() if part)
    return {"name": name, "origin": origin, "hub": hub, **read_card(folder).model_dump()}


def read_card(folder: Path) -> CardConfig:
    """License and language as the front matter of a folder's model card says them, as far as it does."""
    try:
        with open(folder / CARD, encoding="utf-8") as file:
            text = file.read(MOST_BYTES)
        matter = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else {}
    except (OSError, ValueError, IndexError, yaml.YAMLError):
        return CardConfig()  # a card is for people, and none that cannot be read is needed
    said = matter if isinstance(matter, dict) else {}
    language = said.get("language")
    return CardConfig(
        **_accepted("license", said.get("license")),
        **_accepted("language", [language] if isinstance(language, str) else language),
    )


def _accepted(field: str, value: Any) -> dict[str, Any]:
    """The field with its value, or nothing if it can have no such value."""
    try:
        CardConfig.model_validate({field: value})
    except ValidationError:
        return {}
    return {field: value}
