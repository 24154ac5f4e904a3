"""Keys of many documents put in order, so that equal ones can be looked for in slices that fit into memory.

    measures/pairs/NAME/looked-at.npz                     what the pass looks through; NAME tells all that it depends on
    measures/pairs/NAME/keys/FIRST-END.rows               of some units, rows of a key and its document, slice after slice
    measures/pairs/NAME/keys/FIRST-END.npz                where the rows of each slice begin, and their digests

Each unit's file is read once, however many slices there are, and of the rows each slice reads its own stretch.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import StorageError
from trainer.curation.arrays import is_intact, read_arrays, write_arrays
from trainer.curation.keys import KEYS, NO_KEY
from trainer.curation.measures import Measure
from trainer.curation.numbering import Numbered, numbers_of
from trainer.engines.executors import Advance
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

FORMAT = 2
LOOKED_AT = "looked-at.npz"
ALIVE, FILES, PIECES, FIRSTS, COUNTS = "alive", "files", "pieces", "firsts", "counts"
ENDS, WIDTH, DIGESTS = "ends", "width", "digests"
SLICE_KEYS = 2**22
"""With its document's number a key takes 16 to 24 bytes, and sorting takes some more copies of them."""

DIGEST_BYTES = 16


class Slice(NamedTuple):
    """The keys that lie in one of so many equal stretches of all numbers of 64 bits."""

    number: int
    of: int


class Group(NamedTuple):
    """The units `[first, end)`, whose keys are put in order together."""

    first: int
    end: int


def slices(keys: int) -> list[Slice]:
    """All slices of so many keys."""
    count = max(1, -(-keys // SLICE_KEYS))
    return [Slice(number, count) for number in range(count)]


def groups(units: Sequence[Numbered], keys: int) -> list[Group]:
    """All units in groups that have about as many keys as a slice, of `keys` a document."""
    found, first, held = [], 0, 0
    for number, each in enumerate(units, 1):
        held += keys * int(each.counts.sum())
        if held >= SLICE_KEYS or number == len(units):
            found.append(Group(first, number))
            first, held = number, 0
    return found


def start_pass(store: Store, units: Sequence[Numbered], by: Measure, alive: NDArray[np.bool_]) -> str:
    """Leave for workers what is looked through; returns its place."""
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
    """Put the keys of a group of units in the order of `count` slices, unless that is done."""
    store, name = Store(url), _name(folder, group)
    if not _is_whole(store, name, count):
        rows = np.concatenate(list(_rows(store, folder, group)))
        stretches = (rows[:, 0] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
        order = np.argsort(stretches, kind="stable")
        rows, ends = rows[order], np.searchsorted(stretches[order], np.arange(count), side="right")
        parts = np.split(rows, ends[:-1])
        digests = np.array([_digest(part.tobytes()) for part in parts], f"V{DIGEST_BYTES}")
        store.write_bytes(f"{name}.rows", rows.tobytes())
        write_arrays(store, f"{name}.npz", {ENDS: ends, WIDTH: np.array(rows.shape[1]), DIGESTS: digests})
    advance(1)


def read_slice(store: Store, folder: str, groups: Sequence[Group], of: Slice) -> NDArray[np.uint64]:
    """A slice's rows: a key, of one or more columns, and its document. Raises `StorageError` if they are gone or damaged."""
    return np.concatenate([_read_part(store, _name(folder, group), of.number) for group in groups])


def forget_order(store: Store, folder: str, groups: Sequence[Group]) -> None:
    """Delete what was put in order, when all pairs are found. File by file: another curation may be writing beside them."""
    for group in groups:
        for ending in ("npz", "rows"):
            store.delete(f"{_name(folder, group)}.{ending}")


def _name(folder: str, group: Group) -> str:
    return f"{folder}/keys/{group.first:05d}-{group.end:05d}"


def _rows(store: Store, folder: str, group: Group) -> Iterator[NDArray[np.uint64]]:
    """The keys of a group, by unit, each with its document in the last column."""
    alive, files, pieces, firsts, counts = read_arrays(store, f"{folder}/{LOOKED_AT}", ALIVE, FILES, PIECES, FIRSTS, COUNTS)
    ends = np.cumsum(pieces)
    for unit in range(*group):
        (keys,) = read_arrays(store, str(files[unit]), KEYS)  # of shape [documents, keys, columns]
        own = slice(ends[unit] - pieces[unit], ends[unit])
        documents = numbers_of(firsts[own], counts[own])
        looked_at = (alive[documents >> 3] >> (7 - (documents & 7)).astype(np.uint8)) & 1 == 1
        row, column = np.nonzero(looked_at[:, None] & (keys[:, :, 0] != NO_KEY))
        yield np.column_stack([keys[row, column], documents[row].astype(np.uint64)])


def _is_whole(store: Store, name: str, count: int) -> bool:
    """Whether a group's rows are there and as they were written."""
    if not is_intact(store, f"{name}.npz"):
        return False
    try:
        for number in range(count):
            _read_part(store, name, number)
    except StorageError:
        return False
    return True


def _read_part(store: Store, name: str, number: int) -> NDArray[np.uint64]:
    ends, width, digests = read_arrays(store, f"{name}.npz", ENDS, WIDTH, DIGESTS)
    row = 8 * int(width)
    start, end = (row * int(ends[at]) if at >= 0 else 0 for at in (number - 1, number))
    try:
        raw = store.read_bytes(f"{name}.rows", start, end) if start < end else b""
    except FileNotFoundError as error:
        raise StorageError(f"{store.path(name)}.rows is gone; start the command again, which makes it anew") from error
    if _digest(raw) != digests[number].tobytes():
        raise StorageError(f"{store.path(name)}.rows is damaged; start the command again, which makes it anew")
    return np.frombuffer(raw, np.uint64).reshape(-1, int(width))


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()
