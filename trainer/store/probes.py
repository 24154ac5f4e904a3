"""What is learnt of a store by writing a small file to it: whether it can be written, its clock, and who shares it."""

import uuid
from contextlib import suppress
from datetime import UTC, datetime

from trainer.common.errors import StorageError, reason_of
from trainer.store import roots
from trainer.store.local import LocalFiles
from trainer.store.private_folders import STAGING
from trainer.store.storage import Store

PROBE = b"probe"


def write_probe(store: Store, purpose: str) -> str:
    """Write a file of a new name; return its key."""
    key = f"{STAGING}/{purpose}-{uuid.uuid4().hex[:12]}"
    store.write_bytes(key, PROBE)
    return key


def check_writable(store: Store) -> None:
    """Raise `StorageError` unless a file can be written and removed, and unless a server of S3 heeds conditions of
    writes; called when a job starts.
    """
    try:
        if store.local is not None:  # in a private folder, which is swept after a kill
            roots.forget(store.local)
            with store.staging() as folder, store.explained("write", STAGING, len(PROBE)):
                (folder / "probe").write_bytes(PROBE)
            return
        probe = write_probe(store, "probe")
    except FileNotFoundError as error:
        raise StorageError(
            f"cannot write {store.url}: {reason_of(error)}; check that the disk or the bucket exists"
        ) from error
    try:
        fault = _fault_of_conditions(store, probe)
    except StorageError:
        with suppress(StorageError):
            store.delete(probe)
        raise
    store.delete(probe)
    if fault is not None:
        raise StorageError(
            f"the server of {store.url} {fault}; these keep two processes from writing one run: use a server that "
            "supports If-None-Match and If-Match on PUT"
        )


def _fault_of_conditions(store: Store, existing: str) -> str | None:
    """What a remote store's server does wrong with writes whose condition is not met; `existing` is a written file.

    Raises `StorageError` for transient errors.
    """
    assert not isinstance(store.files, LocalFiles)
    try:
        with store.explained("write", existing, len(PROBE)):
            return None if store.files.heeds_conditions(PROBE, existing) else "ignores conditional writes"
    except StorageError as error:
        if error.transient:
            raise
        return f"refuses conditional writes ({error.__cause__})"


def age(store: Store, key: str) -> float | None:
    """Seconds since a file was written, by the clock of the store, which may differ from this machine's clock.

    None if the file does not exist. If the store cannot be written, this machine's clock is used. Raises `StorageError`
    if a remote store is unreachable, or if this machine's disk is full.
    """
    with store.explained("look for", key):
        written = store.files.modified(key)
    if written is None:
        return None
    try:
        now = _now(store, key)
    except StorageError as error:
        if error.transient and store.local is None:
            raise
        now = datetime.now(UTC)
    return (now - written).total_seconds()


def _now(store: Store, key: str) -> datetime:
    """The time of the clock that dates files written at `key`."""
    if store.local is not None:
        with store.staging(key=key) as folder:
            return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    probe = write_probe(store, "clock")
    try:
        with store.explained("look for", probe):
            now = store.files.modified(probe)
    finally:
        with suppress(StorageError):  # leave it behind
            store.delete(probe)
    if now is None:
        raise StorageError(
            f"{store.path(probe)} was removed by another program immediately after it was written", transient=True
        )
    return now
