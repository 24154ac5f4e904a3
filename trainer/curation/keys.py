"""Keys: what documents have in common that are duplicates of each other."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.config.curation import ExactConfig, NearConfig
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import shingles

KEYS = "keys-{:03d}"
"""Names of arrays, uint64 with some columns, of which documents share a row that are duplicates of each other."""

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
        texts = (self.normalised(text).encode() for text in batch.texts.strings)
        found = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
        return {KEYS.format(0): np.frombuffer(found, "<u8").reshape(-1, 2)}

    def normalised(self, text: str) -> str:
        """A text without what does not count."""
        if "unicode" in self.normalise:
            text = unicodedata.normalize("NFC", text)
        if "case" in self.normalise:
            text = text.casefold()
        if "punctuation" in self.normalise:
            text = re.sub(r"[^\w\s]", "", text)
        return " ".join(text.split()) if "space" in self.normalise else text


@dataclass(frozen=True)
class Signature(Measure):
    """A MinHash signature of each document's n-grams, each band of it as one number (Leskovec et al., 3.4.1)."""

    ngram: int
    bands: int
    rows: int
    seed: int
    name: ClassVar[str] = "signature"

    def made_by(self) -> list[Any]:
        from rensa import RMinHash

        return [RMinHash.ALGORITHM_VERSION]

    @classmethod
    def of(cls, options: NearConfig) -> "Signature":
        return cls(options.ngram, options.bands, options.rows, options.seed)

    def __call__(self, batch: Batch) -> Rows:
        hashes, starts = shingles(batch.texts, self.ngram)
        minima = self.minima(hashes, starts).reshape(len(starts) - 1, self.bands, self.rows)
        some = np.diff(starts) > 0  # a text without a word resembles nothing
        return {KEYS.format(band): np.where(some, _mixed(minima[:, band]), NO_KEY)[:, None] for band in range(self.bands)}

    def minima(self, hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The minima, `bands * rows` a text, of the hashes of its n-grams."""
        from rensa import RMinHash

        offsets, minima = starts.astype(np.uint64), self.bands * self.rows
        found = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, minima, self.seed)
        return np.array(found.to_rows(), np.uint64)


def _mixed(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for each row of numbers, other ones for other rows but for one pair in 2**64, and never 0."""
    mixed = np.full(len(rows), 0x9E3779B97F4A7C15, np.uint64)
    for column in rows.T:
        mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(29)
    return np.maximum(mixed, np.uint64(1))
