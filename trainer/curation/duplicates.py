"""Duplicates: documents that share a key, and what is linked through others that do.

A slice's pairs are kept in the store: a pass that is broken off goes on from them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import StorageError
from trainer.curation.arrays import is_intact, read_arrays, write_arrays
from trainer.curation.slices import Group, Slice, read_slice
from trainer.engines.carriers import Advance
from trainer.store.storage import Store

PAIRS = "pairs"
SETTLED_AT_ONCE = 2**22


def pair(url: str, folder: str, groups: Sequence[Group], of: Slice, advance: Advance) -> None:
    """Find the pairs of one slice, unless they are in the store: of those that share a key, each with the first one.

    Raises `StorageError` if the keys that were put in order are gone or damaged.
    """
    store = Store(url)
    if not are_paired(store, folder, of):
        try:
            rows = read_slice(store, folder, groups, of)
        except StorageError:
            if not are_paired(store, folder, of):  # else another curation of the same text was faster, and cleared away
                raise
        else:
            write_arrays(store, _file(folder, of), {PAIRS: _pairs(rows)})
    advance(1)


def are_paired(store: Store, folder: str, of: Slice) -> bool:
    """Whether the pairs of a slice are in the store."""
    return is_intact(store, _file(folder, of))


def read_pairs(store: Store, folder: str, of: Slice) -> NDArray[np.int64]:
    """The pairs of a slice: two columns, the first of those that share a key, and another one."""
    (pairs,) = read_arrays(store, _file(folder, of), PAIRS)
    return pairs


def _file(folder: str, of: Slice) -> str:
    return f"{folder}/pairs-{of.number:05d}-{of.of:05d}.npz"


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

    def settle(self, among: NDArray[np.bool_]) -> NDArray[Any]:
        """Link some documents directly to the first one of their cluster; others stay linked to what they were linked to.

        Returns what each document is linked to, itself if to no other. It is this object's own array.
        """
        for start in range(0, len(among), SETTLED_AT_ONCE):
            documents = start + np.flatnonzero(among[start : start + SETTLED_AT_ONCE])
            roots = self.parents[documents]
            while ((above := self.parents[roots]) != roots).any():
                self.parents[documents] = roots = above  # so that each round goes twice as far
        return self.parents

    def _roots(self, documents: NDArray[Any]) -> NDArray[Any]:
        """The first document of each one's cluster, to which the documents are linked directly from now on."""
        roots: NDArray[Any] = self.parents[documents]
        while ((above := self.parents[roots]) != roots).any():
            roots = above
        self.parents[documents] = roots
        return roots
