"""Keys that duplicates share (`Digest`, `Signature`), and the search for shared keys, in slices that fit in memory.

    measures/pairs/NAME/looked-at.npz                     the input of the pass; NAME is the digest of this input
    measures/pairs/NAME/keys/FIRST-END.rows               rows of a key and its document from some units, by slice
    measures/pairs/NAME/keys/FIRST-END.npz                the end of each slice's rows, and their checksums

Each unit's file is read once for any number of slices, and each slice reads only its own range of the rows.

The groups of each slice are stored, so an interrupted pass continues from them.
"""

import hashlib
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import StorageError
from trainer.config.curation import ExactConfig, NearConfig
from trainer.curation.measures import Batch, Measure, Rows, composed
from trainer.curation.texts import Texts, shingles, starts_of
from trainer.curation.units import Numbered, is_intact, numbers_of, read_arrays, write_arrays
from trainer.engines.executors import Advance
from trainer.store.checked_files import SUM_BYTES, sum_of
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

KEYS = "keys"
"""The name of an array of uint64, shape [documents, keys, columns]; documents with a key in common are duplicates or
candidates.
"""

MINIMA_AT_ONCE = 2**19
"""The minima are returned as Python numbers of 36 bytes each."""

NO_KEY = np.uint64(0)
"""The key of a document that has no duplicates."""


@dataclass(frozen=True)
class Digest(Measure):
    """128 bits of BLAKE2b of each document's normalised text."""

    normalise: tuple[str, ...]
    name: ClassVar[str] = "digest"
    version: ClassVar[int] = 2

    @classmethod
    def of(cls, options: ExactConfig) -> "Digest":
        return cls(tuple(sorted(set(options.normalise))))

    def __call__(self, batch: Batch) -> Rows:
        texts = (self.normalised(text).encode() for text in batch.texts.strings)
        found = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
        return {KEYS: np.frombuffer(found, "<u8").reshape(-1, 1, 2)}

    def normalised(self, text: str) -> str:
        """A text after normalisation."""
        if "unicode" in self.normalise:
            text = unicodedata.normalize("NFC", text)
        if "case" in self.normalise:
            text = self._folded(text)
        if "punctuation" in self.normalise:
            text = text.translate(punctuation())
        return " ".join(text.split()) if "space" in self.normalise else text

    def _folded(self, text: str) -> str:
        """A text without differences of case. Folding decomposes some letters: with `unicode` it is Unicode's canonical
        caseless matching (chapter 3.13, D145), so that ΐ equals its upper case, which has no composed character.
        """
        if "unicode" not in self.normalise:
            return text.casefold()
        return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


@cache
def punctuation() -> dict[int, None]:
    """The table with which `str.translate` removes punctuation; symbols such as + are not punctuation."""
    return {point: None for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)).startswith("P")}


@dataclass(frozen=True)
class Signature(Measure):
    """A MinHash signature of each document's n-grams, with each band hashed to one number (Leskovec et al., 3.4.1)."""

    ngram: int
    bands: int
    rows: int
    seed: int
    name: ClassVar[str] = "signature"
    version: ClassVar[int] = 3

    def made_by(self) -> list[Any]:
        from rensa import RMinHash

        return [RMinHash.ALGORITHM_VERSION]

    @classmethod
    def of(cls, options: NearConfig) -> "Signature":
        return cls(options.ngram, options.bands, options.rows, options.seed)

    def __call__(self, batch: Batch) -> Rows:
        return {KEYS: self._keys(composed(batch.texts))}

    def _keys(self, texts: Texts) -> NDArray[np.uint64]:
        hashes, starts = shingles(texts, self.ngram)
        minima = self.minima(hashes, starts).reshape(len(starts) - 1, self.bands, self.rows)
        some = np.diff(starts) > 0  # a text without words has no near duplicates
        bands = [np.where(some, _mixed(minima[:, band], band), NO_KEY) for band in range(self.bands)]
        return np.stack(bands, axis=1)[:, :, None]

    def minima(self, hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The minima of the hashes of each text's n-grams; shape [texts, bands * rows]."""
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
    """A hash of each row of a band, never 0; different rows or bands collide with a probability of 2**-64."""
    mixed = np.full(len(rows), 0x9E3779B97F4A7C15 + band, np.uint64)
    for column in rows.T:
        mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(29)
    return np.maximum(mixed, np.uint64(1))


FORMAT = 3
LOOKED_AT = "looked-at.npz"
ALIVE, FILES, PIECES, FIRSTS, COUNTS = "alive", "files", "pieces", "firsts", "counts"
ENDS, WIDTH, SUMS = "ends", "width", "sums"
SLICE_KEYS = 2**22
"""With its document's number a key takes 16 to 24 bytes, and sorting needs several copies of them."""


class Slice(NamedTuple):
    """Number `number` of `of` equal ranges of the 64-bit keys."""

    number: int
    of: int


class Group(NamedTuple):
    """The units `[first, end)`, whose keys are sorted together."""

    first: int
    end: int


def slices(keys: int) -> list[Slice]:
    """The slices for this number of keys."""
    count = max(1, -(-keys // SLICE_KEYS))
    return [Slice(number, count) for number in range(count)]


def groups(units: Sequence[Numbered], keys: int) -> list[Group]:
    """All units in groups with about as many keys as a slice; `keys` is the number per document."""
    found, first, held = [], 0, 0
    for number, each in enumerate(units, 1):
        held += keys * int(each.counts.sum())
        if held >= SLICE_KEYS or number == len(units):
            found.append(Group(first, number))
            first, held = number, 0
    return found


def start_pass(store: Store, units: Sequence[Numbered], by: Measure, alive: NDArray[np.bool_]) -> str:
    """Write the input of a pass for the workers; returns its folder."""
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


def put_in_order(url: str, folder: str, group: Group, count: int, advance: Advance) -> None:
    """Sort the keys of a group of units by slice, for `count` slices, unless the store has the result."""
    store, name = Store(url), _name(folder, group)
    if not _is_whole(store, name, count):
        rows = np.concatenate(list(_rows(store, folder, group)))
        buckets = (rows[:, 0] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
        order = np.argsort(buckets, kind="stable")
        rows, ends = rows[order], np.searchsorted(buckets[order], np.arange(count), side="right")
        parts = np.split(rows, ends[:-1])
        sums = np.array([sum_of(part.tobytes()) for part in parts], f"V{SUM_BYTES}")
        store.write_bytes(f"{name}.rows", rows.tobytes())
        write_arrays(store, f"{name}.npz", {ENDS: ends, WIDTH: np.array(rows.shape[1]), SUMS: sums})
    advance(1)


def read_slice(store: Store, folder: str, groups: Sequence[Group], of: Slice) -> NDArray[np.uint64]:
    """A slice's rows: a key of one or more columns, and a document. Raises `StorageError` for lost or damaged rows."""
    return np.concatenate([_read_part(store, _name(folder, group), of.number) for group in groups])


def forget_order(store: Store, folder: str, groups: Sequence[Group]) -> None:
    """Delete the sorted keys after all pairs are found; only these files, as another curation may write beside them."""
    for group in groups:
        for ending in ("npz", "rows"):
            store.delete(f"{_name(folder, group)}.{ending}")


def _name(folder: str, group: Group) -> str:
    return f"{folder}/keys/{group.first:05d}-{group.end:05d}"


def _rows(store: Store, folder: str, group: Group) -> Iterator[NDArray[np.uint64]]:
    """The keys of a group, by unit, each with its document in the last column."""
    alive, files, pieces, firsts, counts = read_arrays(
        store, f"{folder}/{LOOKED_AT}", ALIVE, FILES, PIECES, FIRSTS, COUNTS
    )
    ends = np.cumsum(pieces)
    for unit in range(*group):
        (keys,) = read_arrays(store, str(files[unit]), KEYS)  # of shape [documents, keys, columns]
        own = slice(ends[unit] - pieces[unit], ends[unit])
        documents = numbers_of(firsts[own], counts[own])
        looked_at = (alive[documents >> 3] >> (7 - (documents & 7)).astype(np.uint8)) & 1 == 1
        row, column = np.nonzero(looked_at[:, None] & (keys[:, :, 0] != NO_KEY))
        yield np.column_stack([keys[row, column], documents[row].astype(np.uint64)])


def _is_whole(store: Store, name: str, count: int) -> bool:
    """Whether a group's rows exist and are intact."""
    if not is_intact(store, f"{name}.npz"):
        return False
    try:
        for number in range(count):
            _read_part(store, name, number)
    except StorageError:
        return False
    return True


def _read_part(store: Store, name: str, number: int) -> NDArray[np.uint64]:
    ends, width, sums = read_arrays(store, f"{name}.npz", ENDS, WIDTH, SUMS)
    row = 8 * int(width)
    start, end = (row * int(ends[at]) if at >= 0 else 0 for at in (number - 1, number))
    try:
        raw = store.read_bytes(f"{name}.rows", start, end) if start < end else b""
    except FileNotFoundError as error:
        raise StorageError(f"{store.path(name)}.rows is gone; start the command again to rebuild it") from error
    if sum_of(raw) != sums[number].tobytes():
        raise StorageError(f"{store.path(name)}.rows is damaged; start the command again to rebuild it")
    return np.frombuffer(raw, np.uint64).reshape(-1, int(width))


DOCUMENTS, SIZES = "documents", "sizes"


class Sharing(NamedTuple):
    """Groups of at least two documents that share a key: each group's documents, ascending, and the groups' sizes."""

    documents: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Duplicates(NamedTuple):
    """Documents in ascending order, and the original of each.

    `similarity` is the Jaccard similarity of the two sets of n-grams, `contained` the share of the document's n-grams
    that the original also has.
    """

    documents: NDArray[np.int64]
    originals: NDArray[np.int64]
    similarity: NDArray[np.float32]
    contained: NDArray[np.float32]


class Compared(NamedTuple):
    """Near duplicates, the number of compared pairs, and of documents that were not compared with all candidates."""

    duplicates: Duplicates
    pairs: int
    incomplete: int


def find_sharing(url: str, folder: str, groups: Sequence[Group], of: Slice, advance: Advance) -> None:
    """Find the documents that share a key of one slice, unless the store has the result.

    Raises `StorageError` if the sorted keys are gone or damaged.
    """
    store = Store(url)
    if not is_found(store, folder, of):
        try:
            rows = read_slice(store, folder, groups, of)
        except StorageError:
            if not is_found(store, folder, of):  # else another curation of the same text finished first
                raise
        else:
            write_arrays(store, _file(folder, of), _sharing(rows)._asdict())
    advance(1)


def is_found(store: Store, folder: str, of: Slice) -> bool:
    """Whether the groups of a slice are in the store."""
    return is_intact(store, _file(folder, of))


def read_sharing(store: Store, folder: str, slices: Sequence[Slice]) -> Sharing:
    """The groups of some slices. Groups with equal documents are returned once: similar documents share many keys.

    All slices are read twice, so that only the returned groups are held in memory.
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
    """A hash of the documents of each group."""
    mixed = _mixed(of.documents.astype(np.uint64)[:, None], 0)
    return np.add.reduceat(mixed, starts_of(of.sizes)[:-1]) if len(of.sizes) else mixed


def _chosen(of: Sharing, groups: NDArray[np.bool_]) -> Sharing:
    return Sharing(of.documents[np.repeat(groups, of.sizes)], of.sizes[groups])


def copies(sharing: Sharing) -> Duplicates:
    """All but the first document of each group; the groups must be disjoint and their documents equal."""
    firsts = np.repeat(sharing.documents[starts_of(sharing.sizes)[:-1]], sharing.sizes)
    others = np.flatnonzero(sharing.documents != firsts)
    order = others[np.argsort(sharing.documents[others])]
    ones = np.ones(len(order), np.float32)
    return Duplicates(sharing.documents[order], firsts[order], ones, ones)


def _file(folder: str, of: Slice) -> str:
    return f"{folder}/sharing-{of.number:05d}-{of.of:05d}.npz"


def _sharing(rows: NDArray[np.uint64]) -> Sharing:
    """The groups of documents with equal keys; the last column of the rows is the document."""
    rows = rows[np.lexsort(tuple(reversed(rows.T)))]
    begins = np.ones(len(rows), bool)
    begins[1:] = (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1)
    sizes = np.diff(np.flatnonzero(np.append(begins, True)))
    return Sharing(rows[np.repeat(sizes > 1, sizes), -1].astype(np.int64), sizes[sizes > 1])
