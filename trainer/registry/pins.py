"""Pins: what upkeep is to leave alone, with all that it was made from.

pins/runs/X    pins/shards/X    …    one small sealed file for each thing that is pinned; its key says what that is
"""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from trainer.common.errors import ArtifactError, ConfigError, RunError
from trainer.common.formats import tell_nearest
from trainer.records.holds import HOLDS, LONGEST, is_being_removed
from trainer.records.run_names import FOLDERS, RUN_PREFIX, find_run_name
from trainer.records.sealed import read_sealed, sealed_bytes
from trainer.store.manifest import MANIFEST
from trainer.store.names import CONFIG, is_plain_key
from trainer.store.storage import Store

PINS = "pins"


def pinned(store: Store) -> set[str]:
    """The keys of all that is pinned, as the names of the pins say."""
    return {f"{kind}/{name}" for kind in FOLDERS for name in store.names(f"{PINS}/{kind}")}


def require_intact_pins(store: Store, remove: bool) -> None:
    """Raise `RunError` for pins and holds that are not what was written under their names: what they kept is not known.

    Damaged holds that were written so long ago that none of that time counts any more are passed over, and with
    `remove` deleted.
    """
    ended, problems, before = list[str](), list[str](), datetime.now(UTC) - LONGEST - timedelta(days=1)
    for file in store.walk(PINS):
        try:
            read_sealed(store, file.key)
        except ArtifactError as error:
            if file.key.startswith(f"{HOLDS}/") and file.modified < before:
                ended.append(file.key)
            else:
                problems.append(str(error))
    if problems:
        told = "; ".join(sorted(problems))
        raise RunError(f"{told}; until then nothing is removed, as it is not known what they keep")
    for key in ended if remove else []:
        store.delete(key)


def pin(store: Store, name: str) -> str:
    """Pin a run, by its name or key, or an artifact by its key; returns the key.

    Raises `ConfigError` for what is no such key, `ArtifactError` if there is nothing there.
    """
    key = _key_of(name if "/" in name else find_run_name(store, name))
    said = {"since": datetime.now(UTC).isoformat(timespec="seconds")}
    made = store.create(f"{PINS}/{key}", sealed_bytes(f"{PINS}/{key}", said))
    # After the pin is there: whatever removes something says so before it looks at the pins.
    removing = is_being_removed(store, key)
    if removing or not store.exists(f"{key}/{CONFIG if key.startswith(RUN_PREFIX) else MANIFEST}"):
        if made:
            store.delete(f"{PINS}/{key}")
        problem = "is gone, or just being removed" if removing else "is not there"
        kind, _, named = key.partition("/")
        hint = tell_nearest(named, store.names(kind))
        raise ArtifactError(f"there is nothing to pin at {store.path(key)}: it {problem}; {hint}")
    return key


def unpin(store: Store, name: str) -> str:
    """Take a pin away; returns the key. Raises `ConfigError` if there is none."""
    found, key = sorted(pinned(store)), _key_of(name)
    if key not in found and "/" not in name:
        with suppress(RunError):  # of a run that is gone, the pin may be there
            key = _key_of(find_run_name(store, name))
    if key not in found:
        raise ConfigError(f"{key} is not pinned; {tell_nearest(key, found)}")
    store.delete(f"{PINS}/{key}")
    return key


def _key_of(name: str) -> str:
    key = name if "/" in name else f"{RUN_PREFIX}{name}"
    if not re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w.-]+", key) or not is_plain_key(key):
        raise ConfigError(
            f"{name!r} cannot be pinned: expected a run's name, or a key such as shards/code-0123456789abcdef"
        )
    return key
