"""Units of work: some pieces of a corpus, and what the measures find in their documents, kept in the store.

Arrays are NumPy's .npz files, with a checksum of the rest where zip files have their comment, so that NumPy reads them
as any other. It is of the file's key too: a file in another one's place is not taken for that.

    measures/CORPUS-READING/MEASURE-OPTIONS/NUMBER-COUNT-PIECES.npz    a unit's: by measure, arrays with a row a
                     document, and pieces      the digest of each piece; counts, its documents
    measures/CORPUS-READING/MEASURE-OPTIONS/HAND/…    the same of corpora of more units than a folder should have names

The names tell all that the content depends on. What such files hold of pieces that have not changed is taken over from
an older file of the unit, so that a changed file is measured alone.

The numbers that `number` gives documents do not depend on how the work was divided, and who of several duplicates stays
is decided by them alone.
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
from trainer.engines.executors import Advance
from trainer.records.sealed import sum_at
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

log = logging.getLogger(__name__)


Arrays = dict[str, NDArray[Any]]

CHECKSUM_BYTES = 16
"""As many as `sum_at` gives."""

DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile)
"""What NumPy and zipfile raise of a file that is not as it was written."""


def write_arrays(store: Store, key: str, arrays: Arrays) -> None:
    """Write a file; the same arrays give the same bytes."""
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    with zipfile.ZipFile(packed, "a") as archive:
        archive.comment = bytes(CHECKSUM_BYTES)
    raw = packed.getbuffer()  # of which no copy is made: a unit's arrays may be as large as its text
    raw[-CHECKSUM_BYTES:] = sum_at(key, raw[:-CHECKSUM_BYTES])
    store.write_bytes(key, raw)


def is_intact(store: Store, key: str) -> bool:
    """Whether a file is there, and as it was written; a damaged one counts as none."""
    return _intact(store, key) is not None


def read_intact(store: Store, key: str) -> Arrays | None:
    """All arrays of a file; None if it is gone, or is damaged."""
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
    log.warning("%s does not match its checksum: it is made anew", store.path(key))
    store.delete(key)  # a copy that was fetched of it counts no more either
    return None


def read_arrays(store: Store, key: str, *names: str) -> list[NDArray[Any]]:
    """Some arrays of a file that was there a moment ago. Raises `StorageError` if it is not, or is damaged."""
    with _opened(store, key) as arrays:
        return [arrays[name] for name in names]


def read_all(store: Store, key: str) -> Arrays:
    """The same of all arrays, by name."""
    with _opened(store, key) as arrays:
        return dict(arrays)


@contextmanager
def _opened(store: Store, key: str) -> Iterator[Any]:
    try:
        # Of a folder the file, of which only what is asked for is read; of a bucket all its bytes, of which no copy is
        # kept.
        source = store.fetch(key) if store.local is not None else io.BytesIO(store.read_bytes(key))
        with np.load(source) as arrays:
            yield arrays
    except (FileNotFoundError, *DAMAGED) as error:
        raise StorageError(
            f"{store.path(key)} is gone or damaged ({error}); start the command again, which makes it anew"
        ) from error


def with_address(error: PlaceError, corpora: Iterable[tuple[CorpusConfig, Sequence[Piece]]]) -> CorpusError:
    """The error with the document's address, for which the documents of the file's pieces before this one are
    counted.
    """
    ((corpus, pieces),) = [each for each in corpora if each[0].name == error.corpus]
    before = [piece for piece in pieces if piece.path == error.piece.path and piece.index < error.piece.index]
    number = sum(1 for piece in before for _ in read_documents(piece, corpus, ignore)) + error.number + 1
    return CorpusError(f"corpus {corpus.name!r}: {error.piece.path}#{number}: {error}")


FORMAT = 2
UNIT_BYTES = 16 * 2**20
"""As much raw text as a worker can hold the measures of, however large the corpus is."""

HANDS = 4096
"""Of a corpus of more units than these, those are in one folder whose numbers leave the same remainder."""

BATCH_BYTES, BATCH_DOCUMENTS = 2**20, 2048
PIECES, COUNTS = "pieces", "counts"
OF_A_UNIT = re.compile(r"(\d{5,})-(\d{5,})-[0-9a-f]{16}\.npz")


@dataclass(frozen=True)
class Unit:
    """Some pieces that are measured together, and the folder of the store that their measures are kept in."""

    corpus: CorpusConfig
    transform: TransformConfig | None
    columns: tuple[str, ...]
    folder: str
    number: int
    count: int
    pieces: tuple[Piece, ...]

    def read(self, store: Store, measure: Measure, *names: str) -> list[NDArray[Any]]:
        """Some arrays of what a measure found. Raises `StorageError` if that is gone."""
        return read_arrays(store, self.key(measure), *names)

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @cached_property
    def digests(self) -> NDArray[np.bytes_]:
        """What each piece's documents depend on besides how they are read."""
        found = ([piece.sha256, piece.index, piece.last, named_reading(piece.path)] for piece in self.pieces)
        return np.array(list(map(fingerprint, found)), "S16")

    def folder_for(self, measure: Measure) -> str:
        """Where what a measure finds in this unit, and in others of its corpus, is kept."""
        return f"{self.folder}/{measure.folder}"

    def key(self, measure: Measure) -> str:
        digest = hashlib.sha256(self.digests.tobytes()).hexdigest()[:16]
        folder = self.folder_for(measure) if self.count <= HANDS else self.hand_for(measure)
        return f"{folder}/{self.number:05d}-{self.count:05d}-{digest}.npz"

    def hand_for(self, measure: Measure) -> str:
        """Where that is kept of a corpus of many units: beside what was kept of this unit when they were fewer, or
        more.
        """
        return f"{self.folder_for(measure)}/{self.number % HANDS:05d}"


def divide(
    corpus: CorpusConfig, pieces: Sequence[Piece], transform: TransformConfig | None, columns: Sequence[str]
) -> list[Unit]:
    """A corpus in units. A piece goes by its name, and their number is a power of two, so that most stay as they
    were.
    """
    wanted = max(1, sum(piece.size for piece in pieces) // UNIT_BYTES)
    count = 1 << (wanted - 1).bit_length()
    folder = f"measures/{corpus.name}-{fingerprint([FORMAT, reading_options(corpus), transform_options(transform)])}"
    return [
        Unit(corpus, transform, tuple(columns), folder, number, count, tuple(hand))
        for number, hand in enumerate(assigned(pieces, count))
        if hand
    ]


def measure(url: str, unit: Unit, measures: Sequence[Measure], advance: Advance) -> None:
    """Measure a unit's documents, as far as that is not in the store. Raises `CorpusError` for what cannot be read."""
    keep_large_buffers()
    store = Store(url)
    missing = [each for each in measures if not is_intact(store, unit.key(each))]
    digests = unit.digests.tolist()
    known = {each: _known_rows(store, unit, each) for each in missing}
    gaps: dict[tuple[bytes, ...], list[Measure]] = {}
    for each in missing:
        gaps.setdefault(tuple(digest for digest in digests if digest not in known[each]), []).append(each)
    to_read = {digest for gap in gaps for digest in gap}
    advance(sum(piece.size for piece, digest in zip(unit.pieces, digests, strict=True) if digest not in to_read))
    for gap, group in gaps.items():
        unread = set(gap)
        pieces = {digest: piece for piece, digest in zip(unit.pieces, digests, strict=True) if digest in unread}
        for each, found in _measure_pieces(unit, list(pieces.values()), group, advance).items():
            known[each] |= dict(zip(pieces, found, strict=True))
    for each in missing:
        rows = [known[each][digest] for digest in digests]
        arrays = {name: np.concatenate([piece[name] for piece in rows]) for name in rows[0]}
        counts = np.array([len(next(iter(piece.values()))) for piece in rows], np.int64)
        write_arrays(store, unit.key(each), {**arrays, PIECES: unit.digests, COUNTS: counts})


def _known_rows(store: Store, unit: Unit, measure: Measure) -> dict[bytes, Rows]:
    """What older files of a unit hold of its pieces, by their digests."""
    own = unit.key(measure)
    wanted = set(unit.digests.tolist())
    known: dict[bytes, Rows] = {}
    folders = (unit.folder_for(measure), unit.hand_for(measure))
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
    """What measures find in some pieces: for each measure, its rows by piece. Documents are measured many at a time."""
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
"""Units that are read at the same time: a large corpus has tens of thousands, and a store may answer from afar."""


def numbers_of(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of the documents of some pieces, one piece after the other, of which each has its first and how
    many.
    """
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
