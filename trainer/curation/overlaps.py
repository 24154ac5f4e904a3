"""What documents have in common with evaluation sets, told with the example that it is of.

measures/overlaps/NAME-examples.npz holds:

by words   int64, for each hash, in their order, the first example that has it: its file's number << 32 | its record's
sha256     of each file; a file is one of these for each of its fields that holds text
field      that field
texts      how many there are in it
too_short  how many of these have fewer than `least_words` words, and are not looked for
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError, StorageError
from trainer.curation.characters import Hashes, Positions
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import MATCHING, Texts, matching, matching_words, shingles_of, starts_of
from trainer.curation.units import Arrays, read_all, read_arrays
from trainer.store.storage import Store

NOTHING = np.uint64(0)
"""Stands for a word where a text has fewer, and for an n-gram where it has none in common."""

SLOTS_OF_EACH, MOST_SLOTS = 8, 2**24


class Wanted(NamedTuple):
    """The hashes of evaluation sets' n-grams of one length, sorted, and a table that tells most others from them."""

    length: int
    hashes: Hashes
    filled: NDArray[np.bool_]

    def places(self, words: Hashes, word_starts: Positions) -> tuple[Hashes, NDArray[np.intp], Positions]:
        """The hashes of all n-grams of texts, the places of those that are looked for, and where each text's start."""
        from trainer.curation.loops import among

        hashes, starts = shingles_of(words, word_starts, self.length)
        return hashes, np.flatnonzero(among(hashes, self.hashes, self.filled)), starts


def wanted_of(hashes: Mapping[int, Hashes]) -> list[Wanted]:
    """What is looked for, of the sorted hashes of n-grams by their length."""
    from trainer.curation.loops import fill

    return [Wanted(length, each, fill(each, _slots(len(each)))) for length, each in hashes.items()]


def _slots(hashes: int) -> int:
    return int(min(MOST_SLOTS, 1 << (SLOTS_OF_EACH * max(hashes, 1)).bit_length()))


@dataclass(frozen=True)
class Overlap(Measure):
    """How many n-grams each document has in common with evaluation sets, whose hashes are in the store under `key`, and
    which.

    `first` is the hash of the first one of the shortest that it has in common, and 0 if there is none.
    """

    url: str
    key: str
    name: ClassVar[str] = "overlap"
    version: ClassVar[int] = 2

    def options(self) -> dict[str, Any]:
        return {"key": self.key}  # wherever the store is

    def __call__(self, batch: Batch) -> Rows:
        said = matching_words(batch.matching)
        return find_shared(overlaps(self), said.hashes, said.starts)

    @property
    def longest(self) -> int:
        """The words of the longest n-gram that is looked for."""
        return max(each.length for each in overlaps(self))

    def across(self, lasts: NDArray[np.uint64], firsts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The n-gram shared where one part ends and the next begins, or 0, by `BorderWords` of shape [P, words]
        each.
        """
        words = np.concatenate([lasts, firsts], axis=1)
        starts = starts_of((words != NOTHING).sum(axis=1))
        return find_shared(overlaps(self), words[words != NOTHING], starts)["first"]


def find_shared(wanted: list[Wanted], words: Hashes, word_starts: Positions) -> dict[str, NDArray[Any]]:
    """What `Overlap` tells of texts, of which the hashes of the words are given."""
    counts, firsts = np.zeros(len(word_starts) - 1, np.int32), np.full(len(word_starts) - 1, NOTHING)
    for each in wanted:
        hashes, places, starts = each.places(words, word_starts)
        texts, at, times = np.unique(
            np.searchsorted(starts, places, side="right") - 1, return_index=True, return_counts=True
        )
        firsts[texts] = np.where(firsts[texts] == NOTHING, hashes[places[at]], firsts[texts])
        counts[texts] += times.astype(np.int32)
    return {"ngrams": counts, "first": firsts}


@dataclass(frozen=True)
class BorderWords(Measure):
    """The first and the last words of each document, so many: what n-grams across the border of two parts are made of.

    A tag or a hyphenated word that the border itself cuts in two is not put together again.
    """

    words: int
    name: ClassVar[str] = "borders"
    version: ClassVar[int] = 1 + MATCHING

    def __call__(self, batch: Batch) -> Rows:
        said = matching_words(batch.matching)
        found = np.full((len(batch.documents), 2 * self.words), NOTHING)
        for text, (start, end) in enumerate(pairwise(said.starts.tolist())):
            count = min(self.words, end - start)
            found[text, :count] = said.hashes[start : start + count]
            found[text, 2 * self.words - count :] = said.hashes[end - count : end]
        return {"firsts": found[:, : self.words], "lasts": found[:, self.words :]}


@cache
def overlaps(of: Overlap) -> list[Wanted]:
    """What is looked for of evaluation sets."""
    return wanted_of(read_hashes(Store(of.url), of.key))


def read_hashes(store: Store, key: str) -> dict[int, Hashes]:
    """The hashes of evaluation sets by the length of their n-grams."""
    return {int(name): hashes for name, hashes in read_all(store, key).items()}


FILES = ("sha256", "field", "texts", "too_short")
RECORD_BITS = 32


class ExampleFile(NamedTuple):
    """A field of a file of an evaluation set: how many texts it holds, and how many of them are too short."""

    sha256: str
    field: str
    texts: int
    too_short: int


def examples_key(key: str) -> str:
    """Where it is kept, beside the hashes under `key`."""
    return f"{key.removesuffix('.npz')}-examples.npz"


def example_numbers(files: NDArray[np.int64], records: NDArray[np.int64]) -> NDArray[np.int64]:
    """What stands for the examples that some records of some files are."""
    return (files << RECORD_BITS) | records


def example_of(numbers: NDArray[np.int64], hashes: Hashes, hashed: np.uint64) -> tuple[int, int]:
    """The first example, by its file and its record, of an n-gram's hash, which is one of these."""
    file, record = divmod(int(numbers[np.searchsorted(hashes, hashed)]), 1 << RECORD_BITS)
    return file, record


def pack_examples(examples: dict[int, NDArray[np.int64]], files: list[ExampleFile]) -> Arrays:
    """The arrays of a file."""
    columns = {name: np.array([getattr(file, name) for file in files]) for name in FILES}
    return {**{str(length): numbers for length, numbers in examples.items()}, **columns}


def read_files(store: Store, key: str) -> list[ExampleFile]:
    """The files whose hashes are kept under `key`."""
    columns = read_arrays(store, examples_key(key), *FILES)
    return [ExampleFile(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def read_examples_of(store: Store, key: str, lengths: Iterable[int]) -> dict[int, NDArray[np.int64]]:
    """What stands for the first example of each hash that is kept under `key`, by the length of the n-grams."""
    return dict(zip(lengths, read_arrays(store, examples_key(key), *map(str, lengths)), strict=True))


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


class SharedWithExamples:
    """What documents share with the evaluation sets that decisions kept out, of which their manifest says
    `kept_out`.
    """

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
        """The example as `headrace curation show` names it: its file, its record's number there, from 1, its field."""
        try:
            hashes, examples = _origins(self.overlap)
        except StorageError:  # what was measured is removed when nothing needs it
            return "an evaluation set"
        at, record = example_of(examples[str(found.length)], hashes[found.length], found.hashed)
        sha256, field = str(examples["sha256"][at]), str(examples["field"][at])
        for file in self.files:
            if (file["sha256"], file["field"]) == (sha256, field):
                return f"{file['path']}#{record + 1} ({field})"
        raise ArtifactError(
            f"the manifest of the decisions names no evaluation file of SHA-256 {sha256}: it is damaged; "
            "delete the decisions to have them made anew"
        )


@cache
def _origins(of: Overlap) -> tuple[dict[int, Hashes], Arrays]:
    """The hashes that are looked for, and what tells the example of each. Raises `StorageError` if they are gone."""
    store = Store(of.url)
    return read_hashes(store, of.key), read_all(store, examples_key(of.key))
