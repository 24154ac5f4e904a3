"""What a document shares with evaluation sets, told with the example that it shares it with."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trainer.common.errors import StorageError
from trainer.curation.examples import Origins
from trainer.curation.measures import composed
from trainer.curation.overlaps import Overlap, overlaps
from trainer.curation.texts import Texts, shingles
from trainer.store.storage import Store


class Shared(NamedTuple):
    """Words of a text that an evaluation set has too: as the text has them, and by their length and their hash."""

    words: str
    length: int
    hashed: np.uint64


class Sharing:
    """What documents share with the evaluation sets that decisions kept out, of which their manifest says `kept_out`."""

    def __init__(self, store: Store, kept_out: Mapping[str, Any]) -> None:
        self.overlap, self.files = Overlap(store.url, kept_out["key"]), kept_out["files"]

    def find(self, text: bytes) -> Shared | None:
        """The first words of a text that an evaluation set has too. Raises `StorageError` if what it has is gone."""
        texts = composed(Texts([text]))
        words = texts.words
        spoken = np.flatnonzero(~words.symbol)
        for length, wanted in overlaps(self.overlap).items():
            hashes, _ = shingles(texts, length)
            found = np.flatnonzero(np.isin(hashes, wanted))
            if len(found):
                first, last = spoken[found[0]], spoken[min(found[0] + length, len(spoken)) - 1]
                return Shared(texts.strings[0][words.first[first] : words.end[last]], length, hashes[found[0]])
        return None

    def tell(self, text: bytes) -> str | None:
        """The same with the first example that has them; None if there are none."""
        found = self.find(text)
        return found and f"{found.words!r} with {self._origin(found)}"

    def _origin(self, found: Shared) -> str:
        try:
            origin = _origins(self.overlap).find(found.length, found.hashed)
        except StorageError:  # of decisions that were made before this was kept
            return "an evaluation set"
        paths = [file["path"] for file in self.files if (file["sha256"], file["field"]) == (origin.sha256, origin.field)]
        return f"{paths[0]}#{origin.number} ({origin.field})"


@cache
def _origins(of: Overlap) -> Origins:
    return Origins(Store(of.url), of.key, overlaps(of))
