"""Duplicates: documents that share a key, and what is linked through others that do.

The keys are looked through in slices, each with the keys of one stretch of the numbers of 64 bits, so that no more than
about `SLICE_KEYS` are in memory at a time. A slice's pairs are kept in the store: a pass that is broken off goes on from them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.curation.arrays import is_intact, read_arrays, write_arrays
from trainer.curation.keys import KEYS, NO_KEY
from trainer.curation.measures import Measure
from trainer.curation.numbering import Numbered, numbers_of
from trainer.engines.carriers import Advance
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

FORMAT = 1
LOOKED_AT = "looked-at.npz"
ALIVE, FILES, PIECES, FIRSTS, COUNTS, PAIRS = "alive", "files", "pieces", "firsts", "counts", "pairs"
SLICE_KEYS = 2**22
"""With its document's number a key takes 16 to 24 bytes, and sorting takes some more copies of them."""


class Slice(NamedTuple):
    """The keys that lie in one of so many equal stretches of all numbers of 64 bits."""

    number: int
    of: int

    @property
    def file(self) -> str:
        return f"pairs-{self.number:05d}-{self.of:05d}.npz"


def slices(keys: int) -> list[Slice]:
    """All slices of so many keys."""
    count = max(1, -(-keys // SLICE_KEYS))
    return [Slice(number, count) for number in range(count)]


def start_pass(store: Store, units: Sequence[Numbered], by: Measure, alive: NDArray[np.bool_]) -> str:
    """Leave for workers what is looked through; returns its place, whose name tells all that the pairs depend on."""
    found = {
        ALIVE: np.packbits(alive),
        FILES: np.array([each.unit.key(by) for each in units]),
        PIECES: np.array([len(each.firsts) for each in units], np.int64),
        FIRSTS: np.concatenate([each.firsts for each in units]),
        COUNTS: np.concatenate([each.counts for each in units]),
    }
    digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in found.values()]
    folder = f"measures/pairs/{fingerprint([FORMAT, digests])}"
    if not is_intact(store, f"{folder}/{LOOKED_AT}"):
        write_arrays(store, f"{folder}/{LOOKED_AT}", found)
    return folder


def pair(url: str, folder: str, of: Slice, advance: Advance) -> None:
    """Find the pairs of one slice, unless they are in the store: of those that share a key, each with the first one."""
    store = Store(url)
    if not is_intact(store, f"{folder}/{of.file}"):
        write_arrays(store, f"{folder}/{of.file}", {PAIRS: _pairs(np.concatenate(list(_rows(store, folder, of))))})
    advance(1)


def read_pairs(store: Store, folder: str, of: Slice) -> NDArray[np.int64]:
    """The pairs of a slice: two columns, the first of those that share a key, and another one."""
    (pairs,) = read_arrays(store, f"{folder}/{of.file}", PAIRS)
    return pairs


def _rows(store: Store, folder: str, of: Slice) -> Iterator[NDArray[np.uint64]]:
    """The keys of a slice, by unit, each with its document in the last column."""
    alive, files, pieces, firsts, counts = read_arrays(store, f"{folder}/{LOOKED_AT}", ALIVE, FILES, PIECES, FIRSTS, COUNTS)
    ends = np.cumsum(pieces)
    for file, start, end in zip(files.tolist(), ends - pieces, ends, strict=True):
        (keys,) = read_arrays(store, file, KEYS)  # of shape [documents, keys, columns]
        documents = numbers_of(firsts[start:end], counts[start:end])
        looked_at = (alive[documents >> 3] >> (7 - (documents & 7)).astype(np.uint8)) & 1 == 1
        first = keys[:, :, 0]
        row, column = np.nonzero(looked_at[:, None] & (first != NO_KEY) & (_stretch(first, of.of) == of.number))
        yield np.column_stack([keys[row, column], documents[row].astype(np.uint64)])


def _stretch(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """In which of `count` stretches of all numbers of 64 bits a key lies."""
    return (keys >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)


def _pairs(rows: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Of rows that are keys and, last, a document: the documents of equal keys, each with the first."""
    order = np.lexsort(tuple(reversed(rows.T)))
    rows = rows[order]
    same = (rows[1:, :-1] == rows[:-1, :-1]).all(axis=1)
    begins = np.concatenate([[True], ~same]) if len(rows) else np.empty(0, bool)
    first = rows[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0)), -1] if len(rows) else rows[:, -1]
    others = ~begins
    return np.column_stack([first[others], rows[others, -1]]).astype(np.int64)


class Clusters:
    """Documents that are linked by pairs, directly or through others. A cluster is known by its first document."""

    def __init__(self, documents: int) -> None:
        self.parents = np.arange(documents, dtype=np.uint32 if documents < 2**32 else np.int64)

    def link(self, pairs: NDArray[np.int64]) -> None:
        """Put the clusters of the documents of each pair together."""
        ones, others = pairs.T
        while len(ones):
            ones, others = self._roots(ones), self._roots(others)
            apart = ones != others
            ones, others = np.minimum(ones, others)[apart], np.maximum(ones, others)[apart]
            np.minimum.at(self.parents, others, ones)  # of several that one root is linked to, the least; the rest goes on

    def firsts(self) -> NDArray[Any]:
        """The first document of each document's cluster. It is this object's own array."""
        while ((above := self.parents[self.parents]) != self.parents).any():
            self.parents = above
        return self.parents

    def _roots(self, documents: NDArray[Any]) -> NDArray[Any]:
        """The first document of each one's cluster, to which the documents are linked directly from now on."""
        roots: NDArray[Any] = self.parents[documents]
        while ((above := self.parents[roots]) != roots).any():
            roots = above
        self.parents[documents] = roots
        return roots
