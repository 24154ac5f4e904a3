"""What a document shares with evaluation sets, told with the example that it shares it with."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trainer.common.errors import ArtifactError, StorageError
from trainer.curation.examples import Origins
from trainer.curation.matching import matching, matching_words
from trainer.curation.overlaps import Overlap, Wanted, overlaps, read_hashes
from trainer.curation.texts import Texts
from trainer.store.storage import Store


class Shared(NamedTuple):
    """Words of a text that an evaluation set has too: as the text has them, and by their length and their hash."""

    words: str
    length: int
    hashed: np.uint64


def find_words(text: bytes, wanted: Iterable[Wanted]) -> Shared | None:
    """The first words of a text among the shortest n-grams that are looked for and that it has."""
    texts = matching(Texts([text]))
    said = matching_words(texts)
    for each in wanted:
        hashes, places, _ = each.places(said.hashes, said.starts)
        if len(places):
            first, last = places[0], min(places[0] + each.length, len(said.first)) - 1
            return Shared(texts.strings[0][said.first[first] : said.end[last]], each.length, hashes[first])
    return None


class Sharing:
    """What documents share with the evaluation sets that decisions kept out, of which their manifest says `kept_out`."""

    def __init__(self, store: Store, kept_out: Mapping[str, Any]) -> None:
        self.overlap, self.files = Overlap(store.url, kept_out["key"]), kept_out["files"]

    def find(self, text: bytes) -> Shared | None:
        """The first words of a text that an evaluation set has too. Raises `StorageError` if what it has is gone."""
        return find_words(text, overlaps(self.overlap))

    def tell(self, text: bytes) -> str | None:
        """The same with the first example that has them; None if there are none."""
        found = self.find(text)
        return found and f"{found.words!r} with {self._origin(found)}"

    def _origin(self, found: Shared) -> str:
        try:
            origin = _origins(self.overlap).find(found.length, found.hashed)
        except StorageError:  # what was measured is removed when nothing needs it
            return "an evaluation set"
        for file in self.files:
            if (file["sha256"], file["field"]) == (origin.sha256, origin.field):
                return f"{file['path']}#{origin.number} ({origin.field})"
        raise ArtifactError(
            f"the manifest of the decisions names no evaluation file of SHA-256 {origin.sha256}: it is damaged; "
            "delete the decisions to have them made anew"
        )


@cache
def _origins(of: Overlap) -> Origins:
    store = Store(of.url)
    return Origins(store, of.key, read_hashes(store, of.key))
