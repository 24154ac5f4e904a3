"""Pins: what upkeep is to leave alone, with all that it was made from.

pins/runs/X    pins/shards/X    …    one small file for each thing that is pinned; its key says what that is
"""

import re
from datetime import UTC, datetime

from trainer.errors import ArtifactError, ConfigError
from trainer.holds import is_being_removed
from trainer.manifest import MANIFEST
from trainer.places import CONFIG
from trainer.references import KINDS, RUNS
from trainer.storage import Store

PINS = "pins"


def pinned(store: Store) -> set[str]:
    """The keys of all that is pinned."""
    return {f"{kind}/{name}" for kind in KINDS for name in store.names(f"{PINS}/{kind}")}


def pin(store: Store, name: str) -> str:
    """Pin a run, by its name or key, or an artifact by its key; returns the key.

    Raises `ConfigError` for what is no such key, `ArtifactError` if there is nothing there.
    """
    key = _key_of(name)
    made = store.create(f"{PINS}/{key}", f"since {datetime.now(UTC).isoformat(timespec='seconds')}\n".encode())
    # After the pin is there: whatever removes something says so before it looks at the pins.
    removing = is_being_removed(store, key)
    if removing or not store.exists(f"{key}/{CONFIG if key.startswith(RUNS) else MANIFEST}"):
        if made:
            store.delete(f"{PINS}/{key}")
        problem = "is gone, or just being removed" if removing else "is not there"
        raise ArtifactError(
            f"there is nothing to pin at {store.path(key)}: it {problem}; `python -m trainer.garbage {store.url}` lists keys"
        )
    return key


def unpin(store: Store, name: str) -> str:
    """Take a pin away; returns the key. Raises `ConfigError` if there is none."""
    key = _key_of(name)
    if not store.exists(f"{PINS}/{key}"):
        raise ConfigError(f"{key} is not pinned; pinned are: {', '.join(sorted(pinned(store))) or 'none'}")
    store.delete(f"{PINS}/{key}")
    return key


def _key_of(name: str) -> str:
    key = name if "/" in name else f"{RUNS}{name}"
    if not re.fullmatch(rf"({'|'.join(KINDS)})/[\w.-]+", key):
        raise ConfigError(f"{name!r} cannot be pinned: expected a run's name, or a key such as shards/code-0123456789abcdef")
    return key
