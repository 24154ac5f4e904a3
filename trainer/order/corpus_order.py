"""The order of one corpus's windows: each once a pass, and in another order in the next.

With a locality of G, the shards are permuted, and the windows of G of them at a time: what is read at one time then lies in
few shards, so that a corpus larger than the disk can be trained on.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trainer.order.permutation import I64, U64, permute, stable_key


class Group(NamedTuple):
    """Shards whose windows are mixed with each other: the turn of a pass at which they begin, and their windows."""

    first: int
    windows: int
    key: int
    shards: I64


class CorpusOrder:
    """Which window a corpus gives at its turn number 0, 1, …

    `counts` are the windows in each of its shards; windows are numbered through them all. `locality` is the number of
    shards in a group; None: all are one.
    """

    def __init__(self, seed: int, name: str, counts: Sequence[int], locality: int | None = None) -> None:
        self._seed, self._name, self._locality = seed, name, locality
        self._counts = np.array(counts, dtype=np.int64)
        self._offsets = np.cumsum(self._counts) - self._counts
        self._size = int(self._counts.sum())
        self._groups = lru_cache(maxsize=4)(self._make_groups)
        self._stretch = lru_cache(maxsize=4)(self._find_stretch)

    def windows(self, turns: U64) -> I64:
        """The windows at these turns, of the same shape."""
        found = np.empty(len(turns), dtype=np.int64)
        passes, groups = self._locate(turns)
        for number, index in {*zip(passes.tolist(), groups.tolist(), strict=True)}:
            here = (passes == number) & (groups == index)
            group = self._groups(number)[index]
            places = turns[here] % np.uint64(self._size) - np.uint64(group.first)
            found[here] = self._windows_of(group, permute(places, group.windows, group.key).astype(np.int64))
        return found

    def shards(self, first: int, last: int) -> Sequence[int]:
        """The shards of the groups that turns `first` to `last` fall into, then those of the group after; each once."""
        passes, groups = self._locate(np.array([first, last], dtype=np.uint64))
        return self._stretch(*zip(passes.tolist(), groups.tolist(), strict=True))

    def _locate(self, turns: U64) -> tuple[I64, I64]:
        """The pass of each turn, and the group within the pass."""
        passes = (turns // np.uint64(self._size)).astype(np.int64)
        places = (turns % np.uint64(self._size)).astype(np.int64)
        groups = np.empty(len(turns), dtype=np.int64)
        for number in np.unique(passes):
            ends = [group.first + group.windows for group in self._groups(int(number))]
            groups[passes == number] = np.searchsorted(ends, places[passes == number], side="right")
        return passes, groups

    def _make_groups(self, number: int) -> list[Group]:
        """The groups of a pass that hold any window."""
        count = len(self._counts)
        if self._locality is None:
            return [Group(0, self._size, stable_key(self._seed, "window", self._name, number), np.arange(count))]
        shards = permute(np.arange(count, dtype=np.uint64), count, stable_key(self._seed, "shard", self._name, number))
        groups: list[Group] = []
        first = 0
        for start in range(0, count, self._locality):
            members = shards[start : start + self._locality].astype(np.int64)
            if windows := int(self._counts[members].sum()):
                groups.append(Group(first, windows, stable_key(self._seed, "window", self._name, number, start), members))
                first += windows
        return groups

    def _windows_of(self, group: Group, places: I64) -> I64:
        """The windows at these places among those of a group's shards."""
        counts = self._counts[group.shards]
        ends = np.cumsum(counts)
        index = np.searchsorted(ends, places, side="right")
        return self._offsets[group.shards[index]] + places - (ends - counts)[index]

    def _find_stretch(self, first: tuple[int, int], last: tuple[int, int]) -> Sequence[int]:
        (number, index), found = first, list[int]()
        while (number, index) <= last:
            found += self._groups(number)[index].shards.tolist()
            number, index = (number, index + 1) if index + 1 < len(self._groups(number)) else (number + 1, 0)
        found += self._groups(number)[index].shards.tolist()
        return tuple(dict.fromkeys(found))
