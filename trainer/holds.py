"""Holds: what stays in a store for a time, because somebody is about to use it, or waits for a person's word on it.

    pins/holds/runs/X@20260501T120000-0123abcd    …    one empty file for each hold; its name says until when it counts, in UTC

Removal says that it is under way before it looks for the last time at what is held and pinned: an artifact has no manifest any
more, and the lease of a run says so. Whoever holds or pins something writes that first, and then looks whether it is being
removed. So of the two at least one sees the other.
"""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from trainer.errors import ArtifactError, StorageError
from trainer.lease import is_being_removed as is_run_being_removed
from trainer.manifest import MANIFEST
from trainer.storage import Store

log = logging.getLogger(__name__)

HOLDS = "pins/holds"
TIME = "%Y%m%dT%H%M%S"
SHORT, LONG, YOUNG = timedelta(hours=1), timedelta(days=7), timedelta(hours=12)
"""For what is done at once, for a run that waits for its turn, and the age below which an artifact needs no hold."""


def held(store: Store) -> set[str]:
    """The keys of all that is held now."""
    return {key for _, key, until in _all(store) if until >= datetime.now(UTC)}


@contextmanager
def holding(store: Store, run: str, lasting: timedelta = SHORT) -> Iterator[None]:
    """Hold a run for the length of a block, or, if this process is killed, for so long; what is in the block looks at it anew.

    Raises `ArtifactError` if the run is being removed.
    """
    name = _hold(store, run, lasting)
    try:
        if is_being_removed(store, run):
            raise ArtifactError(f"{store.path(run)} is just being removed")
        yield
    finally:
        store.delete(name)


def hold_reused(store: Store, key: str, created: str) -> bool:
    """Hold an artifact that was made long ago and is used again, until a run says so; returns whether it is still there.

    What is young, or is held for most of that time, costs nothing, or a listing. A store that cannot be written is only read.
    """
    now = datetime.now(UTC)
    if now - datetime.fromisoformat(created) < YOUNG:
        return True
    try:
        if not any(each == key and until > now + LONG - YOUNG for _, each, until in _all(store)):
            _hold(store, key, LONG)
    except StorageError as error:
        log.info("%s may be removed before a run says that it reads it: %s", store.path(key), error)
        return True
    return not is_being_removed(store, key)


def is_being_removed(store: Store, key: str) -> bool:
    """Whether something is being removed, or, of an artifact, is gone."""
    return is_run_being_removed(store, key) if key.startswith("runs/") else not store.exists(f"{key}/{MANIFEST}")


def forget_ended(store: Store) -> None:
    """Delete the holds that do not count any more."""
    for name, _, until in _all(store):
        if until < datetime.now(UTC):
            store.delete(name)


def _hold(store: Store, key: str, lasting: timedelta) -> str:
    name = f"{HOLDS}/{key}@{datetime.now(UTC) + lasting:{TIME}}-{uuid.uuid4().hex[:8]}"
    store.write_bytes(name, b"")
    return name


def _all(store: Store) -> Iterator[tuple[str, str, datetime]]:
    """Each hold: its name, what is held, and until when."""
    for kind in store.names(HOLDS):
        for name in store.names(f"{HOLDS}/{kind}"):
            key, _, ends = name.rpartition("@")
            yield f"{HOLDS}/{kind}/{name}", f"{kind}/{key}", datetime.strptime(ends[:15], TIME).replace(tzinfo=UTC)
