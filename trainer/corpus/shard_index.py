"""Where the documents of a shard begin: its .idx file, as `trainer.corpus.shards` describes it."""

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError
from trainer.common.outages import patiently
from trainer.corpus.suspects import suspect
from trainer.store.manifest import FileRecord, read_made
from trainer.store.storage import Store


def read_index(store: Store, key: str, file: FileRecord) -> NDArray[np.int64]:
    """The start of each document of a shard, and the end of the last, in tokens.

    A store that is away is waited for. Raises `ArtifactError` for a damaged file, of which the next preparation is told.
    """
    try:
        raw = patiently(lambda: read_made(store, key, file))
    except ArtifactError as error:
        suspect(store, key, str(error))
        raise
    return np.frombuffer(raw, dtype="<u8").astype(np.int64)
