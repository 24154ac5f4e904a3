"""Holds: what stays in a store for a time, because somebody is about to use it, or waits for a person's word on it.

    pins/holds/runs/X@20260501T120000-0123abcd    …    one small sealed file for each hold

Its name says until when it counts, in UTC.

Removal says that it is under way before it looks for the last time at what is held and pinned: an artifact has no
manifest any more, and the lease of a run says so. Whoever holds or pins something writes that first, and then looks
whether it is being removed. So of the two at least one sees the other.
"""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple

from trainer.common.errors import ArtifactError, StorageError
from trainer.records.lease import is_being_removed as is_run_being_removed
from trainer.records.sealed import write_sealed
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store

log = logging.getLogger(__name__)

HOLDS = "pins/holds"
TIME = "%Y%m%dT%H%M%S"
SHORT, LONG, LONGEST = timedelta(hours=1), timedelta(days=7), timedelta(days=8)
"""For what is done at once; for a run that waits for its turn; and for a run that waits so long for a person's word,
with a day more for what follows."""

SPENT = timedelta(hours=12)
"""The part of a long hold that may have passed before the same is held again."""


class Hold(NamedTuple):
    """A hold: the key of its file, what is held, and until when."""

    file: str
    key: str
    until: datetime


def held(store: Store) -> set[str]:
    """The keys of all that is held now, as the names of the holds say."""
    return {hold.key for hold in _all(store) if hold.until >= datetime.now(UTC)}


@contextmanager
def holding(store: Store, run: str, lasting: timedelta = SHORT) -> Iterator[None]:
    """Hold a run for the length of a block, or, if this process is killed, for so long; what is in the block looks at
    it anew.

    Raises `ArtifactError` if the run is being removed.
    """
    name = _hold(store, run, lasting)
    try:
        if is_being_removed(store, run):
            raise ArtifactError(f"{store.path(run)} is just being removed")
        yield
    finally:
        store.delete(name)


def hold_reused(store: Store, key: str) -> bool:
    """Hold an artifact that is used again, until a run says so; returns whether it is still there.

    However young it is: who removes garbage chooses from which age on. What is held for most of that time already costs
    a listing. A store that cannot be written is only read. Raises `StorageError` if it cannot be for now.
    """
    least = datetime.now(UTC) + LONG - SPENT
    try:
        if not any(hold.key == key and hold.until > least for hold in _of(store, key.partition("/")[0])):
            _hold(store, key, LONG)
    except StorageError as error:
        if error.transient:
            raise
        log.info("%s may be removed before a run says that it reads it: %s", store.path(key), error)
        return True
    return not is_being_removed(store, key)


def is_being_removed(store: Store, key: str) -> bool:
    """Whether something is being removed, or, of an artifact, is gone."""
    return is_run_being_removed(store, key) if key.startswith("runs/") else not store.exists(f"{key}/{MANIFEST}")


def forget_ended(store: Store) -> None:
    """Delete the holds that do not count any more."""
    for hold in _all(store):
        if hold.until < datetime.now(UTC):
            store.delete(hold.file)


def _hold(store: Store, key: str, lasting: timedelta) -> str:
    name = f"{HOLDS}/{key}@{datetime.now(UTC) + lasting:{TIME}}-{uuid.uuid4().hex[:8]}"
    write_sealed(store, name, {"held": key})
    return name


def _all(store: Store) -> Iterator[Hold]:
    """All holds. Who removes something checks that each is what was written under its name (registry/references.py)."""
    return chain.from_iterable(_of(store, folder) for folder in store.names(HOLDS))


def _of(store: Store, folder: str) -> Iterator[Hold]:
    """The holds of what is in a folder of the store."""
    for file in (f"{HOLDS}/{folder}/{name}" for name in store.names(f"{HOLDS}/{folder}")):
        key, _, until = file.removeprefix(f"{HOLDS}/").rpartition("@")
        with suppress(ValueError):  # its name is damaged
            yield Hold(file, key, datetime.strptime(until[:15], TIME).replace(tzinfo=UTC))
