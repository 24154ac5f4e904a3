"""A run's own evaluation, and the encoded set that it is of: a fine-tuned run's test split may be another one than before."""

from typing import Any

from trainer.errors import ArtifactError
from trainer.places import CONFIG
from trainer.seals import remedy_of, require_sealed
from trainer.storage import Store


def encoded_in(config: dict[str, Any]) -> str | None:
    """The key of the encoded set that a run's config.json names; None of a run on shards."""
    key: str | None = config.get("data", {}).get("key")
    return key


def encoded_of(store: Store, run: str) -> str:
    """The key of a fine-tuned run's encoded set, with the test split that the run was last asked for with.

    Raises `ArtifactError` if its config.json does not say it.
    """
    place = f"{run}/{CONFIG}"
    key = encoded_in(require_sealed(store, place))
    if key is None:
        raise ArtifactError(f"{store.path(place)} is damaged: it names no encoded data set; {remedy_of(place)}")
    return key
