"""Duplicates: the documents that share a key, in groups, and the pairs that are duplicates of each other.

The groups of each slice of keys are kept in the store, so that a pass that is broken off continues from them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import StorageError
from trainer.curation.arrays import is_intact, read_arrays, write_arrays
from trainer.curation.slices import Group, Slice, read_slice
from trainer.curation.texts import starts_of
from trainer.engines.executors import Advance
from trainer.store.storage import Store

DOCUMENTS, SIZES = "documents", "sizes"


class Sharing(NamedTuple):
    """Groups of at least two documents that share a key: the documents of each group, ascending, and the groups' sizes."""

    documents: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Duplicates(NamedTuple):
    """Documents, ascending, and the one that each is a duplicate of.

    `similarity` is the Jaccard similarity of the two sets of n-grams, `contained` the share of the document's n-grams that the
    original has too.
    """

    documents: NDArray[np.int64]
    originals: NDArray[np.int64]
    similarity: NDArray[np.float32]
    contained: NDArray[np.float32]


class Compared(NamedTuple):
    """Near duplicates, how many pairs were compared for them, and of how many documents that stay not all pairs were."""

    duplicates: Duplicates
    pairs: int
    incomplete: int


def find_sharing(url: str, folder: str, groups: Sequence[Group], of: Slice, advance: Advance) -> None:
    """Find the documents that share a key of one slice, unless they are in the store.

    Raises `StorageError` if the keys that were put in order are gone or damaged.
    """
    store = Store(url)
    if not is_found(store, folder, of):
        try:
            rows = read_slice(store, folder, groups, of)
        except StorageError:
            if not is_found(store, folder, of):  # else another curation of the same text was faster, and cleared away
                raise
        else:
            write_arrays(store, _file(folder, of), _sharing(rows)._asdict())
    advance(1)


def is_found(store: Store, folder: str, of: Slice) -> bool:
    """Whether the groups of a slice are in the store."""
    return is_intact(store, _file(folder, of))


def read_sharing(store: Store, folder: str, slices: Sequence[Slice]) -> Sharing:
    """The groups of some slices. Groups of the same documents count once: similar documents share many keys.

    All slices are read twice, so that only groups that count are held.
    """
    marks = [_marks(each) for each in _read_all(store, folder, slices)]
    counts = np.zeros(sum(map(len, marks)), bool)
    counts[np.unique(np.concatenate(marks), return_index=True)[1]] = True
    counting = np.split(counts, np.cumsum([len(each) for each in marks])[:-1])
    chosen = [_chosen(*each) for each in zip(_read_all(store, folder, slices), counting, strict=True)]
    return Sharing(*map(np.concatenate, zip(*chosen, strict=True)))


def _read_all(store: Store, folder: str, slices: Sequence[Slice]) -> Iterator[Sharing]:
    return (Sharing(*read_arrays(store, _file(folder, each), DOCUMENTS, SIZES)) for each in slices)


def _marks(of: Sharing) -> NDArray[np.uint64]:
    """A number for each group that tells which documents it holds."""
    mixed = (of.documents.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return np.add.reduceat(mixed, starts_of(of.sizes)[:-1]) if len(of.sizes) else mixed


def _chosen(of: Sharing, groups: NDArray[np.bool_]) -> Sharing:
    return Sharing(of.documents[np.repeat(groups, of.sizes)], of.sizes[groups])


def copies(sharing: Sharing) -> Duplicates:
    """Of groups that share no document, and whose documents are the same: all but the first of each."""
    firsts = np.repeat(sharing.documents[starts_of(sharing.sizes)[:-1]], sharing.sizes)
    others = np.flatnonzero(sharing.documents != firsts)
    order = others[np.argsort(sharing.documents[others])]
    ones = np.ones(len(order), np.float32)
    return Duplicates(sharing.documents[order], firsts[order], ones, ones)


def _file(folder: str, of: Slice) -> str:
    return f"{folder}/sharing-{of.number:05d}-{of.of:05d}.npz"


def _sharing(rows: NDArray[np.uint64]) -> Sharing:
    """Of rows that are keys and, last, a document: the documents of equal keys."""
    rows = rows[np.lexsort(tuple(reversed(rows.T)))]
    begins = np.ones(len(rows), bool)
    begins[1:] = (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1)
    sizes = np.diff(np.flatnonzero(np.append(begins, True)))
    return Sharing(rows[np.repeat(sizes > 1, sizes), -1].astype(np.int64), sizes[sizes > 1])
