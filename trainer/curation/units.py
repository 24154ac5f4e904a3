"""Units of work: some pieces of a corpus, and their documents' measures, which are kept in the store.

Arrays are in NumPy's .npz files. The zip comment holds a checksum of the file and its key, so NumPy can read the file,
and a file copied to another key fails the check.

    measures/CORPUS-READING/MEASURE-OPTIONS/NUMBER-COUNT-PIECES.npz    a unit's measure: arrays with a row per document;
                     pieces    the digest of each piece; counts    the number of its documents
    measures/CORPUS-READING/MEASURE-OPTIONS/SUBFOLDER/…    the same if there are more units than one folder should hold

The names identify all that the content depends on. Values of unchanged pieces are copied from older files of the unit,
so only changed files are measured again.

The numbers that `number` gives documents do not depend on the division into units, and they alone decide which of
several duplicates is kept.
"""

import hashlib
import io
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, StorageError
from trainer.common.process import keep_large_buffers
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import TransformConfig
from trainer.curation.measures import Batch, Measure, Place, PlaceError, Rows
from trainer.curation.texts import starts_of
from trainer.data.decisions import read_curated, transform_options
from trainer.data.pieces import Piece, assigned
from trainer.data.readers import Document, ignore, read_documents
from trainer.data.shards import batches, text_bytes
from trainer.data.sources import named_reading, reading_options
from trainer.engines.executors import Advance, filling
from trainer.records.sealed import sum_at
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

log = logging.getLogger(__name__)


Arrays = dict[str, NDArray[Any]]

CHECKSUM_BYTES = 16
"""The length of a checksum of `sum_at`."""

DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile)
"""The exceptions of NumPy and zipfile for a damaged file."""


def write_arrays(store: Store, key: str, arrays: Arrays) -> None:
    """Write a file; equal arrays give equal bytes."""
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    with zipfile.ZipFile(packed, "a") as archive:
        archive.comment = bytes(CHECKSUM_BYTES)
    raw = packed.getbuffer()  # a view without a copy: a unit's arrays may be as large as its text
    raw[-CHECKSUM_BYTES:] = sum_at(key, raw[:-CHECKSUM_BYTES])
    store.write_bytes(key, raw)


def is_intact(store: Store, key: str) -> bool:
    """Whether a file exists and is intact; a damaged one is deleted."""
    return _intact(store, key) is not None


def read_intact(store: Store, key: str) -> Arrays | None:
    """All arrays of a file; None if it is gone or damaged."""
    if (raw := _intact(store, key)) is None:
        return None
    with np.load(io.BytesIO(raw)) as arrays:
        return dict(arrays)


def _intact(store: Store, key: str) -> bytes | None:
    raw = store.find_bytes(key)
    if raw is None:
        return None
    if raw[-CHECKSUM_BYTES:] == sum_at(key, memoryview(raw)[:-CHECKSUM_BYTES]):
        return raw
    log.warning("%s does not match its checksum; it will be rebuilt", store.path(key))
    store.delete(key)  # also discards a fetched copy
    return None


def read_arrays(store: Store, key: str, *names: str) -> list[NDArray[Any]]:
    """Some arrays of a file that must exist. Raises `StorageError` if it is gone or damaged."""
    with _opened(store, key) as arrays:
        return [arrays[name] for name in names]


def read_all(store: Store, key: str) -> Arrays:
    """All arrays of a file that must exist, by name. Raises `StorageError` if it is gone or damaged."""
    with _opened(store, key) as arrays:
        return dict(arrays)


@contextmanager
def _opened(store: Store, key: str) -> Iterator[Any]:
    try:
        # From a folder, only the requested arrays are read; from a bucket, the whole file, without caching a copy.
        source = store.fetch(key) if store.local is not None else io.BytesIO(store.read_bytes(key))
        with np.load(source) as arrays:
            yield arrays
    except (FileNotFoundError, *DAMAGED) as error:
        raise StorageError(
            f"{store.path(key)} is gone or damaged ({error}); start the command again to rebuild it"
        ) from error


def with_address(error: PlaceError, corpora: Iterable[tuple[CorpusConfig, Sequence[Piece]]]) -> CorpusError:
    """The error with the document's address, found by counting the documents in the file's earlier pieces."""
    ((corpus, pieces),) = [each for each in corpora if each[0].name == error.corpus]
    before = [piece for piece in pieces if piece.path == error.piece.path and piece.index < error.piece.index]
    number = sum(1 for piece in before for _ in read_documents(piece, corpus, ignore)) + error.number + 1
    return CorpusError(f"corpus {corpus.name!r}: {error.piece.path}#{number}: {error}")


FORMAT = 2
UNIT_BYTES = 16 * 2**20
"""Raw text of a unit: a worker must be able to hold the measures of this much, however large the corpus is."""

SUBFOLDERS = 4096
"""A corpus with more units than this has as many subfolders; a unit is in that of its number modulo this."""

BATCH_BYTES, BATCH_DOCUMENTS = 2**20, 2048
PIECES, COUNTS = "pieces", "counts"
OF_A_UNIT = re.compile(r"(\d{5,})-(\d{5,})-[0-9a-f]{16}\.npz")


@dataclass(frozen=True)
class Unit:
    """Some pieces that are measured together, and the folder of the store that holds their measures."""

    corpus: CorpusConfig
    transform: TransformConfig | None
    columns: tuple[str, ...]
    folder: str
    number: int
    count: int
    pieces: tuple[Piece, ...]

    def read(self, store: Store, measure: Measure, *names: str) -> list[NDArray[Any]]:
        """Some arrays of a measure. Raises `StorageError` if they are gone."""
        return read_arrays(store, self.key(measure), *names)

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @cached_property
    def digests(self) -> NDArray[np.bytes_]:
        """A digest for each piece of all that its documents depend on, except how they are read."""
        found = ([piece.sha256, piece.index, piece.last, named_reading(piece.path)] for piece in self.pieces)
        return np.array(list(map(fingerprint, found)), "S16")

    def folder_for(self, measure: Measure) -> str:
        """The folder of a measure of this corpus's units."""
        return f"{self.folder}/{measure.folder}"

    def key(self, measure: Measure) -> str:
        digest = hashlib.sha256(self.digests.tobytes()).hexdigest()[:16]
        folder = self.folder_for(measure) if self.count <= SUBFOLDERS else self.subfolder_for(measure)
        return f"{folder}/{self.number:05d}-{self.count:05d}-{digest}.npz"

    def subfolder_for(self, measure: Measure) -> str:
        """The subfolder for a corpus of many units; older files of the unit, from another division, are also in it."""
        return f"{self.folder_for(measure)}/{self.number % SUBFOLDERS:05d}"


def divide(
    corpus: CorpusConfig, pieces: Sequence[Piece], transform: TransformConfig | None, columns: Sequence[str]
) -> list[Unit]:
    """Divide a corpus into units. A piece is assigned by its name, and the number of units is a power of two, so most
    units stay the same when a corpus grows.
    """
    wanted = max(1, sum(piece.size for piece in pieces) // UNIT_BYTES)
    count = 1 << (wanted - 1).bit_length()
    folder = f"measures/{corpus.name}-{fingerprint([FORMAT, reading_options(corpus), transform_options(transform)])}"
    return [
        Unit(corpus, transform, tuple(columns), folder, number, count, tuple(group))
        for number, group in enumerate(assigned(pieces, count))
        if group
    ]


def measure(url: str, unit: Unit, measures: Sequence[Measure], advance: Advance) -> None:
    """Compute the measures of a unit that the store lacks. Raises `CorpusError` for unreadable data."""
    keep_large_buffers()
    store = Store(url)
    missing = [each for each in measures if not is_intact(store, unit.key(each))]
    digests = unit.digests.tolist()
    known = {each: _known_rows(store, unit, each) for each in missing}
    gaps: dict[tuple[bytes, ...], list[Measure]] = {}
    for each in missing:
        gaps.setdefault(tuple(digest for digest in digests if digest not in known[each]), []).append(each)
    with filling(advance, sum(piece.size for piece in unit.pieces)) as count:  # pieces that are not read count, too
        for gap, group in gaps.items():
            unread = set(gap)
            pieces = {digest: piece for piece, digest in zip(unit.pieces, digests, strict=True) if digest in unread}
            for each, found in _measure_pieces(unit, list(pieces.values()), group, count).items():
                known[each] |= dict(zip(pieces, found, strict=True))
    for each in missing:
        rows = [known[each][digest] for digest in digests]
        arrays = {name: np.concatenate([piece[name] for piece in rows]) for name in rows[0]}
        counts = np.array([len(next(iter(piece.values()))) for piece in rows], np.int64)
        write_arrays(store, unit.key(each), {**arrays, PIECES: unit.digests, COUNTS: counts})


def _known_rows(store: Store, unit: Unit, measure: Measure) -> dict[bytes, Rows]:
    """The values that older files of a unit hold of its pieces, by the pieces' digests."""
    own = unit.key(measure)
    wanted = set(unit.digests.tolist())
    known: dict[bytes, Rows] = {}
    folders = (unit.folder_for(measure), unit.subfolder_for(measure))
    for key in (f"{folder}/{name}" for folder in folders for name in store.names(folder)):
        if not (match := OF_A_UNIT.fullmatch(key.rpartition("/")[2])):
            continue
        number, count = int(match[1]), int(match[2])
        if wanted <= known.keys() or key == own or unit.number % count != number:
            continue
        if (arrays := read_intact(store, key)) is None:
            continue
        digests, counts = arrays.pop(PIECES).tolist(), arrays.pop(COUNTS)
        for digest, end, documents in zip(digests, np.cumsum(counts), counts, strict=True):
            if digest in wanted:
                known[digest] = {array: values[end - documents : end] for array, values in arrays.items()}
    return known


def _measure_pieces(
    unit: Unit, pieces: Sequence[Piece], measures: Sequence[Measure], advance: Advance
) -> dict[Measure, list[Rows]]:
    """For each measure its rows by piece. Documents are measured in batches, across pieces."""
    found: dict[Measure, list[Rows]] = {each: [each(Batch([]))] for each in measures}
    places: list[Place] = []
    counts = np.zeros(len(pieces), np.int64)
    bad = BadRecords(unit.corpus.max_bad_records)

    def documents() -> Iterator[Document]:
        for number, piece in enumerate(pieces):
            for document in read_curated(piece, unit.corpus, bad.add, unit.transform, columns=unit.columns):
                places.append((unit.corpus.name, piece, int(counts[number])))
                counts[number] += 1
                yield document

    for read in batches(documents(), BATCH_BYTES, text_bytes, BATCH_DOCUMENTS):
        batch = Batch(read, places)
        for each in measures:
            found[each].append(each(batch))
        places.clear()
        advance(sum(len(document.text) for document in batch.documents))
    by_piece: dict[Measure, list[Rows]] = {}
    for each, parts in found.items():
        rows = {name: np.concatenate([rows[name] for rows in parts]) for name in parts[0]}
        by_piece[each] = [
            {name: values[start:end] for name, values in rows.items()} for start, end in pairwise(starts_of(counts))
        ]
    return by_piece


READERS = 16
"""Units read at the same time: a large corpus has tens of thousands, and a remote store answers slowly."""


def numbers_of(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of all documents of some pieces, given the first number and the count of each piece."""
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


class Numbered(NamedTuple):
    """A unit, and the number of the first document of each of its pieces."""

    unit: Unit
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def documents(self) -> NDArray[np.int64]:
        """The numbers of the unit's documents, in the order of its rows."""
        return numbers_of(self.firsts, self.counts)


class Numbering(NamedTuple):
    """All units with their documents' numbers; by corpus, the first number and the documents of each piece."""

    units: list[Numbered]
    firsts: dict[str, int]
    counts: dict[str, NDArray[np.int64]]
    total: int


def number(store: Store, corpora: Sequence[tuple[str, Sequence[Piece], Sequence[Unit]]], measure: Measure) -> Numbering:
    """Number all documents; each corpus is given by its name, its pieces in order, and its units."""
    numbered: list[Numbered] = []
    firsts: dict[str, int] = {}
    counts: dict[str, NDArray[np.int64]] = {}
    total = 0
    for name, pieces, units in corpora:
        places = {piece: place for place, piece in enumerate(pieces)}
        own = np.zeros(len(pieces), np.int64)
        of_units = []
        with ThreadPoolExecutor(READERS) as pool:
            for unit, (found,) in zip(
                units, pool.map(lambda unit: unit.read(store, measure, COUNTS), units), strict=True
            ):
                at = np.array([places[piece] for piece in unit.pieces], np.int64)
                own[at] = found
                of_units.append(at)
        starts = total + np.cumsum(own) - own
        numbered += [Numbered(unit, starts[at], own[at]) for unit, at in zip(units, of_units, strict=True)]
        firsts[name], counts[name] = total, own
        total += int(own.sum())
    return Numbering(numbered, firsts, counts, total)
