"""Removing artifacts and runs from a store in which others may begin to use them at the same time."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from trainer.common.errors import RunError
from trainer.data.tokenization import STARTED
from trainer.records.lease import LEASE, Lease
from trainer.store.manifest import MANIFEST
from trainer.store.names import BEST, CHECKPOINTS, CONFIG, FINAL, LAST
from trainer.store.storage import Store


def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
    """Remove an artifact, unless something reaches it again; returns whether it is gone.

    Its manifest goes first, which says to others that it is being removed. Then one looks again. Who pins or holds it, or
    claims a run that reads it, writes that first and then looks for the manifest: so either that is seen here, and the manifest
    is put back, or no artifact is found there, and never half of one. Who makes it anew writes the manifest itself.

    Between the last look for that and the deletion lies one request. What is published within it on a remote store is found
    damaged when it is next looked at, and made anew.
    """
    try:
        manifest = store.read_bytes(f"{key}/{MANIFEST}")
    except FileNotFoundError:
        return False  # another process makes it anew, or removes it
    needed = True
    try:
        store.delete(f"{key}/{MANIFEST}")
        needed = is_reached()
    finally:  # also after a deletion whose answer was lost
        if needed and not store.exists(f"{key}/{STARTED}"):
            store.create(f"{key}/{MANIFEST}", manifest)
    if needed or any(store.exists(f"{key}/{name}") for name in (STARTED, MANIFEST)):
        return False
    store.delete(key, first=MANIFEST)
    return True


def remove_run(store: Store, run: str, before: datetime, is_reached: Callable[[], bool]) -> bool:
    """Remove a run, unless something was written to it since, reaches it again, or a process continues it.

    Returns whether it is gone. Its lease says that it is being removed before one looks for what reaches it: who pins or
    promotes it looks at the lease after that is written. The final model goes first, then what names checkpoints, and last the
    record of whose they are: after a kill at any instant the run can still be continued, or removed.
    """
    try:
        with Lease(store, run, removing=True) as lease:
            if any(file.modified >= before for file in store.walk(run) if file.key != f"{run}/{LEASE}") or is_reached():
                return False
            inside = [f"{CHECKPOINTS}/{name}" for name in store.names(f"{run}/{CHECKPOINTS}")]
            first = [FINAL, LAST, BEST, *inside]
            others = [name for name in store.names(run) if name not in (*first, CONFIG, LEASE)]
            for name in [*first, *others, CONFIG]:
                lease.check()
                store.delete(f"{run}/{name}", first=MANIFEST)
    except RunError:
        return False
    if store.local is not None:
        with suppress(OSError):  # it is not empty: a new run has begun there
            (store.local / run).rmdir()
    return True
