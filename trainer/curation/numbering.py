"""The numbers of documents: counted over all corpora, in the order of the configuration, of their files and in these.

They do not depend on how the work was divided, and who of several duplicates stays is decided by them alone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.curation.measures import Measure
from trainer.curation.measuring import COUNTS, Unit
from trainer.data.pieces import Piece
from trainer.store.storage import Store

READERS = 16
"""Units that are read at the same time: a large corpus has tens of thousands, and a store may answer from afar."""


def numbers_of(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of the documents of some pieces, one piece after the other, of which each has its first and how many."""
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


class Numbered(NamedTuple):
    """A unit, and the number of the first document of each of its pieces."""

    unit: Unit
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def documents(self) -> NDArray[np.int64]:
        """The numbers of a unit's documents, in the order of its rows."""
        return numbers_of(self.firsts, self.counts)


class Numbering(NamedTuple):
    """All units with their documents' numbers; by corpus, the first number and the documents of each piece."""

    units: list[Numbered]
    firsts: dict[str, int]
    counts: dict[str, NDArray[np.int64]]
    total: int


def number(store: Store, corpora: Sequence[tuple[str, Sequence[Piece], Sequence[Unit]]], measure: Measure) -> Numbering:
    """Number all documents: of each corpus, its name, its pieces in their order, and its units."""
    numbered: list[Numbered] = []
    firsts: dict[str, int] = {}
    counts: dict[str, NDArray[np.int64]] = {}
    total = 0
    for name, pieces, units in corpora:
        places = {piece: place for place, piece in enumerate(pieces)}
        own = np.zeros(len(pieces), np.int64)
        of_units = []
        with ThreadPoolExecutor(READERS) as pool:
            for unit, (found,) in zip(units, pool.map(lambda unit: unit.read(store, measure, COUNTS), units), strict=True):
                at = np.array([places[piece] for piece in unit.pieces], np.int64)
                own[at] = found
                of_units.append(at)
        starts = total + np.cumsum(own) - own
        numbered += [Numbered(unit, starts[at], own[at]) for unit, at in zip(units, of_units, strict=True)]
        firsts[name], counts[name] = total, own
        total += int(own.sum())
    return Numbering(numbered, firsts, counts, total)
