"""Near duplicates: among documents that share a key of their signatures, those to drop in favour of another.

    measures/pairs/NAME/ngrams-BOUNDS-UNIT.npz            the number of files with the n-grams of a unit's documents
    measures/pairs/NAME/ngrams-BOUNDS-UNIT-NUMBER.npz     these n-grams
    measures/pairs/NAME/near-BOUNDS.npz                   the near duplicates among these documents, and their originals

A shared key only suggests a pair: each pair is compared by all its n-grams. Documents are processed in descending order
of their number of different n-grams, and one is dropped if it resembles, or is contained in, a kept document. So no
document is dropped because of a dropped one, and the result depends neither on the number of workers nor on the order
in which they finish.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.progress import Bar
from trainer.common.stopping import check_stop
from trainer.config.curation import NearConfig
from trainer.curation.loops import compiled
from trainer.curation.measures import composed
from trainer.curation.shared_keys import Compared, Duplicates, Sharing
from trainer.curation.texts import Texts, shingles, starts_of
from trainer.curation.units import (
    BATCH_BYTES,
    BATCH_DOCUMENTS,
    Numbered,
    Unit,
    is_intact,
    read_arrays,
    read_intact,
    write_arrays,
)
from trainer.data.decisions import read_curated
from trainer.data.readers import Document, ignore
from trainer.data.shards import batches, text_bytes
from trainer.engines.executors import Advance
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

MOST_COMPARED = 32
"""Of the kept documents with a key, a document with that key is compared with at most these many: those next in length.
"""

WORK_AT_ONCE = 2**24
"""N-grams compared between two checks for a stop request: 0.1 s of work, 1 s at worst."""

HASHES_AT_ONCE = 2**22
"""N-grams per file."""

SIZES, HASHES, COUNTS, FILES = "sizes", "hashes", "counts", "files"
FORMAT = 1


ROUNDING = 1e-6
FOUND = np.dtype([("original", np.int64), ("common", np.int64), ("compared", np.int64), ("left", np.int64)])
"""For each document: its original or -1; the number of n-grams in common; the number of documents that it was compared
with; and the number of documents with a shared key that it was not compared with."""


class Part(NamedTuple):
    """The rows of a unit whose documents share a key with another one, and the prefix of the files of their n-grams."""

    unit: Unit
    counts: NDArray[np.int64]
    rows: NDArray[np.int64]
    documents: NDArray[np.int64]
    key: str


def parts_of(folder: str, near: NearConfig, units: Sequence[Numbered], candidates: NDArray[np.bool_]) -> list[Part]:
    """All documents to compare, by unit; `candidates` is a flag for every document.

    The files' names contain the bounds, so a concurrent curation with other bounds does not share files.
    """
    found = []
    for number, each in enumerate(units):
        rows = np.flatnonzero(candidates[each.documents])
        if len(rows):
            found.append(
                Part(each.unit, each.counts, rows, each.documents[rows], f"{folder}/{_ngrams_of(near)}{number:05d}")
            )
    return found


def gather(url: str, part: Part, ngram: int, advance: Advance) -> None:
    """Store the n-grams of some of a unit's documents, unless the store has them."""
    store = Store(url)
    if not all(is_intact(store, key) for key in _files(store, part) or [_index(part)]):
        write_ngrams(store, part, _ngrams(part, ngram))
    advance(len(part.rows))


def write_ngrams(store: Store, part: Part, ngrams: Iterable[NDArray[np.uint64]]) -> None:
    """Write the n-grams of each document of a part, in order, in several files."""
    files = 0
    for some in batches(ngrams, HASHES_AT_ONCE, len):
        sizes = np.array(list(map(len, some)), np.int64)
        write_arrays(store, _file(part, files), {SIZES: sizes, HASHES: np.concatenate(some)})
        files += 1
    write_arrays(store, _index(part), {FILES: np.array(files)})


def _index(part: Part) -> str:
    return f"{part.key}.npz"


def _file(part: Part, number: int) -> str:
    return f"{part.key}-{number:05d}.npz"


def _files(store: Store, part: Part) -> list[str]:
    """The files of a part's n-grams; empty if their number is not stored."""
    if (index := read_intact(store, _index(part))) is None:
        return []
    return [_file(part, number) for number in range(int(index[FILES]))]


def _ngrams(part: Part, ngram: int) -> Iterator[NDArray[np.uint64]]:
    """The hashes of each document's different n-grams, ascending."""
    for batch in batches(_documents(part), BATCH_BYTES, text_bytes, BATCH_DOCUMENTS):
        hashes, starts = shingles(composed(Texts([document.text for document in batch])), ngram)
        yield from (np.unique(hashes[start:end]) for start, end in pairwise(starts.tolist()))


def _documents(part: Part) -> Iterator[Document]:
    """The documents of a part. A piece that holds one is read to its end, where its digest is checked."""
    ends = np.cumsum(part.counts)
    for piece, start, end in zip(part.unit.pieces, (ends - part.counts).tolist(), ends.tolist(), strict=True):
        own = part.rows[slice(*np.searchsorted(part.rows, (start, end)))]
        if len(own):
            wanted = set((own - start).tolist())
            documents = read_curated(piece, part.unit.corpus, ignore, part.unit.transform)
            yield from (document for number, document in enumerate(documents) if number in wanted)


class NGrams(NamedTuple):
    """Documents, in descending order of their number of n-grams; the n-grams of each are at `starts` in `hashes`."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    hashes: NDArray[np.uint64]


def compare(store: Store, folder: str, parts: Sequence[Part], sharing: Sharing, near: NearConfig, bar: Bar) -> Compared:
    """Decide which documents are near duplicates by the n-grams that `gather` stored.

    Raises `StorageError` if these are gone or damaged.
    """
    with store.staging(key=folder) as private:
        ngrams = _in_one_file(store, parts, private)
        found = _compare_all(ngrams, sharing, near, bar)
    gone = np.flatnonzero(found["original"] >= 0)
    gone = gone[np.argsort(ngrams.documents[gone])]
    originals, common, sizes = found["original"][gone], found["common"][gone], ngrams.sizes
    similarity = common / (sizes[gone] + sizes[originals] - common)
    duplicates = Duplicates(
        ngrams.documents[gone], ngrams.documents[originals],
        similarity.astype(np.float32), (common / sizes[gone]).astype(np.float32),
    )  # fmt: skip
    return Compared(duplicates, int(found["compared"].sum()), int((found["left"] > 0).sum()))


def _in_one_file(store: Store, parts: Sequence[Part], folder: Path) -> NGrams:
    """Copy all n-grams into one file and map it: they may exceed memory."""
    sizes, written = [np.empty(0, np.int64)], 0
    with open(folder / HASHES, "wb") as file:
        for part in parts:
            for key in _files(store, part) or [_index(part)]:
                own_sizes, own_hashes = read_arrays(store, key, SIZES, HASHES)
                sizes.append(own_sizes)
                file.write(own_hashes.data)
                written += len(own_hashes)
    counts = np.concatenate(sizes)
    documents = np.concatenate([np.empty(0, np.int64), *(part.documents for part in parts)])
    order = np.lexsort((documents, -counts))
    hashes = np.memmap(folder / HASHES, np.uint64, "r") if written else np.empty(0, np.uint64)
    return NGrams(documents[order], starts_of(counts)[:-1][order], counts[order], hashes)


def _compare_all(ngrams: NGrams, sharing: Sharing, near: NearConfig, bar: Bar) -> NDArray[np.void]:
    """The fields of `FOUND` for each document; `original` is an index into `ngrams.documents`."""
    documents = len(ngrams.documents)
    entries, groups_of_all = len(sharing.documents), len(sharing.sizes)
    # The arrays of this type have one entry for each document and key.
    number: type[np.signedinteger[Any]] = np.int32 if max(documents, entries) < 2**31 else np.int64
    by_number = np.argsort(ngrams.documents)
    members = by_number.astype(number)[np.searchsorted(ngrams.documents, sharing.documents, sorter=by_number)]
    first_group = starts_of(np.bincount(members, minlength=documents))
    groups = np.repeat(np.arange(groups_of_all, dtype=number), sharing.sizes)[np.argsort(members, kind="stable")]
    del members
    kept, kept_counts = np.empty(entries, number), np.zeros(groups_of_all, np.int64)
    found, compared_with = np.zeros(documents, FOUND), np.full(documents, -1, np.int64)
    first = 0
    while first < documents:
        check_stop()
        end = _compare(
            first, ngrams.hashes, ngrams.starts, ngrams.sizes, groups, first_group, starts_of(sharing.sizes), kept,
            kept_counts, near.least_similarity, near.least_contained, compared_with, found, WORK_AT_ONCE,
        )  # fmt: skip
        bar.advance(end - first)
        first = end
    return found


def find_compared(store: Store, folder: str, near: NearConfig) -> Compared | None:
    """The stored result of this pass; None if there is none."""
    if (arrays := read_intact(store, _result(folder, near))) is None:
        return None
    pairs, incomplete = arrays.pop(COUNTS).tolist()
    return Compared(Duplicates(**arrays), pairs, incomplete)


def keep_compared(store: Store, folder: str, near: NearConfig, found: Compared) -> None:
    """Store the result, for a pass that is interrupted after this."""
    counts = np.array([found.pairs, found.incomplete], np.int64)
    write_arrays(store, _result(folder, near), {**found.duplicates._asdict(), COUNTS: counts})


def forget_ngrams(store: Store, folder: str, near: NearConfig) -> None:
    """Delete the n-grams after the comparison: they may take as much space as the text."""
    for name in store.names(folder):
        if name.startswith(_ngrams_of(near)):
            store.delete(f"{folder}/{name}")


def _ngrams_of(near: NearConfig) -> str:
    """The common prefix of the names of all files of n-grams."""
    return f"ngrams-{_bounds(near)}-"


def _result(folder: str, near: NearConfig) -> str:
    return f"{folder}/near-{_bounds(near)}.npz"


def _bounds(near: NearConfig) -> str:
    return fingerprint([FORMAT, near.least_similarity, near.least_contained])


@compiled
def _compare(
    first: int, hashes: NDArray[np.uint64], starts: NDArray[np.int64], sizes: NDArray[np.int64],
    groups: NDArray[np.signedinteger[Any]], first_group: NDArray[np.int64], group_starts: NDArray[np.int64],
    kept: NDArray[np.signedinteger[Any]], kept_counts: NDArray[np.int64], least_similarity: float,
    least_contained: float,
    compared_with: NDArray[np.int64], found: NDArray[np.void], most_work: int,
) -> int:  # fmt: skip
    """Compare documents from `first` on with earlier kept ones that share a key; `kept` lists these by key.

    Returns the first document that was not compared: after `most_work`, or at the end.
    """
    work = 0
    for document in range(first, len(sizes)):
        if work >= most_work:
            return document
        work += 1
        result, size, best = found[document], sizes[document], 0.0
        result.original = -1
        own = hashes[starts[document] : starts[document] + size]
        for at in range(first_group[document], first_group[document + 1]):
            start, count = group_starts[groups[at]], kept_counts[groups[at]]
            result.left += max(0, count - MOST_COMPARED)
            for place in range(start + max(0, count - MOST_COMPARED), start + count):
                other = kept[place]
                if compared_with[other] == document:
                    continue  # already compared because of another key
                compared_with[other] = document
                result.compared += 1
                work += size
                both = size + sizes[other]
                needed = min(least_similarity * both / (1 + least_similarity), least_contained * size)
                common = _common(own, hashes[starts[other] : starts[other] + sizes[other]], needed - ROUNDING)
                similarity = common / (both - common)
                if (similarity >= least_similarity or common / size >= least_contained) and (
                    similarity > best or (similarity == best and other < result.original)
                ):
                    best, result.original, result.common = similarity, other, common
        if result.original >= 0:
            result.left = 0
            continue
        for at in range(first_group[document], first_group[document + 1]):
            group = groups[at]
            kept[group_starts[group] + kept_counts[group]] = document
            kept_counts[group] += 1
    return len(sizes)


@compiled
def _common(one: NDArray[np.uint64], other: NDArray[np.uint64], needed: float) -> int:
    """The number of common values of two ascending arrays; 0 as soon as it is certainly less than `needed`.

    `other` may be much longer: it is searched with doubling strides.
    """
    common, at = 0, 0
    for number in range(len(one)):
        value, stride = one[number], 1
        while at + stride < len(other) and other[at + stride] < value:
            at += stride
            stride *= 2
        end = min(at + stride, len(other) - 1)
        while at < end:
            middle = (at + end) // 2
            if other[middle] < value:
                at = middle + 1
            else:
                end = middle
        if at < len(other) and other[at] == value:
            common += 1
        elif common + len(one) - number - 1 < needed:
            return 0
    return common
