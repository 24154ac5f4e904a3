"""Sets of shards in which damage was found while they were read: the next preparation reads all of such a set, and mends it."""

from trainer.storage import Store

SUSPECT = "suspect.json"
"""In the set's folder; that it is there is all that counts."""


def suspect(store: Store, key: str, problem: str) -> None:
    """Note that an artifact is damaged."""
    store.write_json(f"{key}/{SUSPECT}", {"problem": problem})


def is_suspect(store: Store, key: str) -> bool:
    """Whether damage was found in an artifact since it was last read whole."""
    return store.exists(f"{key}/{SUSPECT}")


def clear(store: Store, key: str) -> None:
    """Note that an artifact was read whole, and is what its manifest says."""
    store.delete(f"{key}/{SUSPECT}")
