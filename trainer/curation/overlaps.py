"""What documents have in common with evaluation sets."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.curation.arrays import read_all
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import Texts, shingles
from trainer.store.storage import Store


@dataclass(frozen=True)
class Overlap(Measure):
    """How many n-grams each document has in common with evaluation sets, whose hashes are in the store, under `key`."""

    url: str
    key: str
    name: ClassVar[str] = "overlap"

    def options(self) -> dict[str, Any]:
        return {"key": self.key}  # wherever the store is

    def __call__(self, batch: Batch) -> Rows:
        return {"ngrams": batch.composed(self._shared)}

    def _shared(self, texts: Texts) -> NDArray[np.int32]:
        found = np.zeros(len(texts), np.int32)
        for ngram, wanted in overlaps(self).items():
            hashes, starts = shingles(texts, ngram)
            shared = np.concatenate([[0], np.cumsum(np.isin(hashes, wanted))])
            found += (shared[starts[1:]] - shared[starts[:-1]]).astype(np.int32)
        return found


@cache
def overlaps(of: Overlap) -> dict[int, NDArray[np.uint64]]:
    """The hashes of evaluation sets by the length of their n-grams."""
    store = Store(of.url)
    return {int(name): hashes for name, hashes in read_all(store, of.key).items()}
