"""Removing artifacts and runs from a store in which others may begin to use them at the same time."""

from collections.abc import Callable
from contextlib import suppress

from trainer.errors import RunError
from trainer.lease import LEASE, Lease
from trainer.manifest import MANIFEST
from trainer.places import BEST, CHECKPOINTS, CONFIG, FINAL, LAST
from trainer.preparation import STARTED
from trainer.storage import Store


def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
    """Remove an artifact, unless something reaches it again; returns whether it is gone.

    Its manifest goes first. Then one looks again: a run first says what it reads, and then looks for the manifests of that. So
    either it is seen here, and the manifest is put back, or it finds no artifact, and never half of one. A preparation that
    has begun to make the artifact anew writes the manifest itself.
    """
    try:
        manifest = store.read_bytes(f"{key}/{MANIFEST}")
    except FileNotFoundError:
        return False  # another process makes it anew, or removes it
    store.delete(f"{key}/{MANIFEST}")
    needed = True
    try:
        needed = is_reached()
    finally:
        if needed and not store.exists(f"{key}/{STARTED}"):
            store.write_bytes(f"{key}/{MANIFEST}", manifest)
    if not needed:
        store.delete(key, first=MANIFEST)
    return not needed


def remove_run(store: Store, run: str, is_reached: Callable[[], bool]) -> bool:
    """Remove a run, unless something reaches it again or a process continues it; returns whether it is gone.

    The final model goes first, then what names checkpoints, and last the record of whose they are: after a kill at any instant
    the run can still be continued, or removed.
    """
    try:
        with Lease(store, run):
            if is_reached():
                return False
            inside = [f"{CHECKPOINTS}/{name}" for name in store.names(f"{run}/{CHECKPOINTS}")]
            first = [FINAL, LAST, BEST, *inside]
            others = [name for name in store.names(run) if name not in (*first, CONFIG, LEASE)]
            for name in [*first, *others, CONFIG]:
                store.delete(f"{run}/{name}", first=MANIFEST)
    except RunError:
        return False
    if store.local is not None:
        with suppress(OSError):  # it is not empty: a new run has begun there
            (store.local / run).rmdir()
    return True
