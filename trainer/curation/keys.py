"""Keys: what documents have in common that are duplicates of each other."""

import hashlib
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.config.curation import ExactConfig, NearConfig
from trainer.curation.characters import OTHER, kinds_of_characters
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import Texts, shingles, starts_of

KEYS = "keys"
"""The name of an array, uint64 of shape [documents, keys, columns]: documents are duplicates that have one key in common."""

MINIMA_AT_ONCE = 2**19
"""They come as numbers of Python, of 36 bytes each."""

NO_KEY = np.uint64(0)
"""Of what is no duplicate of anything."""


@dataclass(frozen=True)
class Digest(Measure):
    """128 bits of BLAKE2b of each document's normalised text."""

    normalise: tuple[str, ...]
    name: ClassVar[str] = "digest"

    @classmethod
    def of(cls, options: ExactConfig) -> "Digest":
        return cls(tuple(sorted(set(options.normalise))))

    def __call__(self, batch: Batch) -> Rows:
        found = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in self._normalised(batch.texts))
        return {KEYS: np.frombuffer(found, "<u8").reshape(-1, 1, 2)}

    def _normalised(self, texts: Texts) -> Iterator[bytes | memoryview]:
        """Texts without what does not count. Of ASCII only white space may be too much, by default, which a loop finds."""
        if "space" not in self.normalise or {"case", "punctuation"} & set(self.normalise):
            yield from (self.normalised(text).encode() for text in texts.strings)
            return
        from trainer.curation.loops import collapse

        plain = [document for document in texts.documents if document.isascii()]
        starts = starts_of(np.fromiter(map(len, plain), np.int64, len(plain)))
        collapsed, ends = collapse(np.frombuffer(b"".join(plain), np.uint8), starts, kinds_of_characters()[:128] < OTHER)
        known = (collapsed[start:end].data for start, end in zip(starts.tolist(), ends.tolist(), strict=False))
        for document, text in zip(texts.documents, texts.strings, strict=True):
            yield next(known) if document.isascii() else self.normalised(text).encode()

    def normalised(self, text: str) -> str:
        """A text without what does not count."""
        if "unicode" in self.normalise:
            text = unicodedata.normalize("NFC", text)
        if "case" in self.normalise:
            text = text.casefold()
        if "punctuation" in self.normalise:
            text = text.translate(punctuation())
        return " ".join(text.split()) if "space" in self.normalise else text


@cache
def punctuation() -> dict[int, None]:
    """What `str.translate` needs to leave punctuation out, which symbols such as + are not."""
    return {point: None for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)).startswith("P")}


@dataclass(frozen=True)
class Signature(Measure):
    """A MinHash signature of each document's n-grams, each band of it as one number (Leskovec et al., 3.4.1)."""

    ngram: int
    bands: int
    rows: int
    seed: int
    name: ClassVar[str] = "signature"
    version: ClassVar[int] = 2

    def made_by(self) -> list[Any]:
        from rensa import RMinHash

        return [RMinHash.ALGORITHM_VERSION]

    @classmethod
    def of(cls, options: NearConfig) -> "Signature":
        return cls(options.ngram, options.bands, options.rows, options.seed)

    def __call__(self, batch: Batch) -> Rows:
        return {KEYS: batch.composed(self._keys)}

    def _keys(self, texts: Texts) -> NDArray[np.uint64]:
        hashes, starts = shingles(texts, self.ngram)
        minima = self.minima(hashes, starts).reshape(len(starts) - 1, self.bands, self.rows)
        some = np.diff(starts) > 0  # a text without a word resembles nothing
        bands = [np.where(some, _mixed(minima[:, band], band), NO_KEY) for band in range(self.bands)]
        return np.stack(bands, axis=1)[:, :, None]

    def minima(self, hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The minima, `bands * rows` a text, of the hashes of its n-grams."""
        from rensa import RMinHash

        width, offsets = self.bands * self.rows, starts.astype(np.uint64)
        found = np.empty((len(starts) - 1, width), np.uint64)
        some = max(1, MINIMA_AT_ONCE // width)
        for first in range(0, len(found), some):
            own = offsets[first : first + some + 1]
            part = hashes[int(own[0]) : int(own[-1])]
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(part, own - own[0], width, self.seed)
            found[first : first + some] = matrix.to_rows()
        return found


def _mixed(rows: NDArray[np.uint64], band: int) -> NDArray[np.uint64]:
    """One number for each row of a band, other ones for other rows and bands but for one pair in 2**64, and never 0."""
    mixed = np.full(len(rows), 0x9E3779B97F4A7C15 + band, np.uint64)
    for column in rows.T:
        mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(29)
    return np.maximum(mixed, np.uint64(1))
