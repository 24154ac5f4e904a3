"""Sets of shards in which damage was found while they were read: the next preparation reads all of such a set, and mends it."""

import logging

from trainer.common.errors import StorageError
from trainer.store.storage import Store

log = logging.getLogger(__name__)

SUSPECT = "suspect.json"
"""In the set's folder; that it is there is all that counts."""


def suspect(store: Store, key: str, problem: str) -> None:
    """Note that an artifact is damaged; a warning tells what to do instead where that cannot be written."""
    try:
        store.write_json(f"{key}/{SUSPECT}", {"problem": problem})
    except StorageError as error:
        log.warning("%s: prepare the data with --verify, which reads all of %s", error, store.path(key))


def is_suspect(store: Store, key: str) -> bool:
    """Whether damage was found in an artifact since it was last read whole."""
    return store.exists(f"{key}/{SUSPECT}")


def clear(store: Store, key: str) -> None:
    """Note that an artifact was read whole, and is what its manifest says."""
    store.delete(f"{key}/{SUSPECT}")
