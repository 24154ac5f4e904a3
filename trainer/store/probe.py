"""A file by which others see whether a store is shared."""

import uuid

from trainer.store.private_folders import STAGING
from trainer.store.storage import Store


def write_probe(store: Store) -> str:
    """Write it; returns its key, for the others to look for, and to be deleted."""
    key = f"{STAGING}/shared-{uuid.uuid4().hex[:12]}"
    store.write_bytes(key, b"probe")
    return key
