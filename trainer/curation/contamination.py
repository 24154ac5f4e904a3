"""Evaluation sets that are kept out of training: their word n-grams, as in GPT-3 (Brown et al. 2020, appendix C), and
those that documents share with them.

    measures/overlaps/NAME.npz            the hashes to search for, by their number of words
    measures/overlaps/NAME-examples.npz   the examples of the hashes:

number of words   int64, for each hash, in order, the first example that has it: file number << 32 | record number
sha256     of each file; a file occurs once for each of its fields that holds text
field      this field
texts      the number of texts in it
too_short  the number of these with fewer than `least_words` words, which are not searched for
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import CorpusError
from trainer.config.curation import DecontaminateConfig, TransformConfig
from trainer.curation.characters import Hashes, Positions
from trainer.curation.evaluation_sets import EvaluationSet, read_examples
from trainer.curation.measures import Batch, Measure, Rows
from trainer.curation.texts import MATCHING, Texts, matching, matching_words, shingles_of, starts_of
from trainer.curation.units import is_intact, read_all, read_arrays, write_arrays
from trainer.data.decisions import UNICODE, transform_options
from trainer.data.shards import batches, text_bytes
from trainer.data.sources import named_reading, reading_options
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

NOTHING = np.uint64(0)
"""Represents a missing word in a short text, and the absence of a shared n-gram."""

SLOTS_OF_EACH, MOST_SLOTS = 8, 2**24


class Wanted(NamedTuple):
    """The sorted hashes of evaluation sets' n-grams of one length, and a table that rejects most other hashes."""

    length: int
    hashes: Hashes
    filled: NDArray[np.bool_]

    def places(self, words: Hashes, word_starts: Positions) -> tuple[Hashes, NDArray[np.intp], Positions]:
        """The hashes of all n-grams of texts, the indices of those searched for, and where each text's start."""
        from trainer.curation.loops import among

        hashes, starts = shingles_of(words, word_starts, self.length)
        return hashes, np.flatnonzero(among(hashes, self.hashes, self.filled)), starts


def wanted_of(hashes: Mapping[int, Hashes]) -> list[Wanted]:
    """The search tables for sorted hashes of n-grams, given by their length."""
    from trainer.curation.loops import fill

    slots = {length: 1 << (SLOTS_OF_EACH * max(len(each), 1)).bit_length() for length, each in hashes.items()}
    return [Wanted(length, each, fill(each, min(MOST_SLOTS, slots[length]))) for length, each in hashes.items()]


@dataclass(frozen=True)
class Overlap(Measure):
    """The number of n-grams that each document shares with evaluation sets, whose hashes are stored under `key`.

    `first` is the hash of the first shared n-gram of the shortest length, or 0 if there is none.
    """

    url: str
    key: str
    name: ClassVar[str] = "overlap"
    version: ClassVar[int] = 2

    def options(self) -> dict[str, Any]:
        return {"key": self.key}  # not the store's URL

    def __call__(self, batch: Batch) -> Rows:
        words = matching_words(batch.matching)
        return find_shared(overlaps(self), words.hashes, words.starts)

    @property
    def longest(self) -> int:
        """The words of the longest n-gram that is searched for."""
        return max(each.length for each in overlaps(self))

    def across(self, lasts: NDArray[np.uint64], firsts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The n-gram shared across the border of two parts, or 0; by `BorderWords`, each of shape [P, words]."""
        words = np.concatenate([lasts, firsts], axis=1)
        starts = starts_of((words != NOTHING).sum(axis=1))
        return find_shared(overlaps(self), words[words != NOTHING], starts)["first"]


def find_shared(wanted: list[Wanted], words: Hashes, word_starts: Positions) -> dict[str, NDArray[Any]]:
    """The arrays of `Overlap` for texts, given their words' hashes."""
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
    """The first and the last `words` words of each document, which make up n-grams across the border of two parts.

    A tag or a hyphenated word that is cut by the border is not joined.
    """

    words: int
    name: ClassVar[str] = "borders"
    version: ClassVar[int] = 1 + MATCHING

    def __call__(self, batch: Batch) -> Rows:
        words = matching_words(batch.matching)
        found = np.full((len(batch.documents), 2 * self.words), NOTHING)
        for text, (start, end) in enumerate(pairwise(words.starts.tolist())):
            count = min(self.words, end - start)
            found[text, :count] = words.hashes[start : start + count]
            found[text, 2 * self.words - count :] = words.hashes[end - count : end]
        return {"firsts": found[:, : self.words], "lasts": found[:, self.words :]}


@cache
def overlaps(of: Overlap) -> list[Wanted]:
    """The search tables of the evaluation sets."""
    return wanted_of(read_hashes(Store(of.url), of.key))


def read_hashes(store: Store, key: str) -> dict[int, Hashes]:
    """The hashes of evaluation sets, by the length of their n-grams."""
    return {int(name): hashes for name, hashes in read_all(store, key).items()}


RECORD_BITS = 32


class ExampleFile(NamedTuple):
    """A field of a file of an evaluation set: the number of texts, and of those that are too short."""

    sha256: str
    field: str
    texts: int
    too_short: int


def examples_key(key: str) -> str:
    """The key of the examples of the hashes under `key`."""
    return f"{key.removesuffix('.npz')}-examples.npz"


def example_of(numbers: NDArray[np.int64], hashes: Hashes, hashed: np.uint64) -> tuple[int, int]:
    """The file and the record of the first example of an n-gram's hash, which must be in `hashes`."""
    file, record = divmod(int(numbers[np.searchsorted(hashes, hashed)]), 1 << RECORD_BITS)
    return file, record


def read_files(store: Store, key: str) -> list[ExampleFile]:
    """The files whose hashes are stored under `key`."""
    columns = read_arrays(store, examples_key(key), *ExampleFile._fields)
    return [ExampleFile(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def read_examples_of(store: Store, key: str, lengths: Iterable[int]) -> dict[int, NDArray[np.int64]]:
    """The encoded first example of each hash stored under `key`, by the length of the n-grams."""
    return dict(zip(lengths, read_arrays(store, examples_key(key), *map(str, lengths)), strict=True))


class Shared(NamedTuple):
    """Words that a text shares with an evaluation set: as written in the text, with their number and their hash."""

    words: str
    length: int
    hashed: np.uint64


def find_words(text: bytes, wanted: Iterable[Wanted]) -> Shared | None:
    """The first shared words of a text, of the shortest length that it shares; None if there are none."""
    texts = matching(Texts([text]))
    words = matching_words(texts)
    for each in wanted:
        hashes, places, _ = each.places(words.hashes, words.starts)
        if len(places):
            first, last = places[0], min(places[0] + each.length, len(words.first)) - 1
            return Shared(texts.strings[0][words.first[first] : words.end[last]], each.length, hashes[first])
    return None


FORMAT = 3
BATCH_BYTES, TOGETHER = 2**20, 4096
ALONE_OF_A_WORD = 2
"""A word of Chinese has one and a half characters on average, of Japanese more than two, of Thai four."""


class LookedFor(NamedTuple):
    """The sorted hashes to search for and the first example of each, by their number of words; and the files."""

    hashes: dict[int, Hashes]
    examples: dict[int, NDArray[np.int64]]
    files: list[ExampleFile]


class Hashed(NamedTuple):
    """The hashes to search for of some texts, each with its text's index, by their number of words."""

    hashes: dict[int, tuple[Hashes, NDArray[np.int64]]]
    too_short: NDArray[np.bool_]
    """Whether each text has too few words, of shape [texts]."""


def name_evaluation(
    options: DecontaminateConfig, transform: TransformConfig | None, found: Sequence[EvaluationSet]
) -> str:
    """A fingerprint of the evaluation sets' content and how it is read; the files' paths do not matter."""
    counted = [options.ngram, options.least_words]
    read = [transform_options(transform), [_identity(each) for each in found]]
    return fingerprint([FORMAT, MATCHING, UNICODE, *counted, *read])


def _identity(found: EvaluationSet) -> list[Any]:
    own = found.job.reading() if found.job else {}
    content = sorted({(piece.sha256, named_reading(piece.path)) for piece in found.pieces})
    return [reading_options(found.corpus), content, *([own] if own else [])]


def find_overlap(
    store: Store, options: DecontaminateConfig, transform: TransformConfig | None, found: Sequence[EvaluationSet]
) -> Overlap:
    """The measure of overlap with evaluation sets; writes their hashes unless the store has them.

    Raises as `look_for`.
    """
    key = f"measures/overlaps/{name_evaluation(options, transform, found)}.npz"
    if not (is_intact(store, key) and is_intact(store, examples_key(key))):
        wanted = look_for(options, transform, found)
        write_arrays(store, key, {str(length): hashes for length, hashes in wanted.hashes.items()})
        columns = {name: np.array([getattr(file, name) for file in wanted.files]) for name in ExampleFile._fields}
        examples = {str(length): numbers for length, numbers in wanted.examples.items()}
        write_arrays(store, examples_key(key), {**examples, **columns})
    return Overlap(store.url, key)


def look_for(
    options: DecontaminateConfig, transform: TransformConfig | None, found: Sequence[EvaluationSet]
) -> LookedFor:
    """Read the evaluation sets. Raises `CorpusError` for one with nothing to search for in any field."""
    hashes: dict[int, list[Hashes]] = {}
    examples: dict[int, list[NDArray[np.int64]]] = {}
    files: list[ExampleFile] = []
    searched: Counter[str] = Counter()
    for each in found:
        counts = np.zeros((len(each.pieces), 2), np.int64)
        for batch in batches(read_examples(each, transform), BATCH_BYTES, text_bytes, TOGETHER):
            of_file, records = np.array([(example.file, example.number) for example in batch], np.int64).T
            numbers = (len(files) + of_file) << RECORD_BITS | records
            hashed = hashes_of(matching(Texts([example.text for example in batch])), options)
            np.add.at(counts, of_file, np.column_stack([np.ones(len(batch), np.int64), hashed.too_short]))
            for length, (some, texts) in hashed.hashes.items():
                hashes.setdefault(length, []).append(some)
                examples.setdefault(length, []).append(numbers[texts])
        texts_of_field, too_short = counts.sum(axis=0).tolist()
        searched[each.corpus.name] += texts_of_field - too_short
        field = each.corpus.text_field
        files += [
            ExampleFile(piece.sha256, field, *row) for piece, row in zip(each.pieces, counts.tolist(), strict=True)
        ]
    _require_some(found, options, searched)
    found_first = {
        length: np.unique(np.concatenate(hashes.pop(length)), return_index=True) for length in sorted(hashes)
    }
    return LookedFor(
        {length: unique for length, (unique, _) in found_first.items()},
        {length: np.concatenate(examples.pop(length))[places] for length, (_, places) in found_first.items()},
        files,
    )


def _require_some(found: Sequence[EvaluationSet], options: DecontaminateConfig, searched: Mapping[str, int]) -> None:
    for corpus in (each.corpus for each in found):  # the fields of a set share a name; one may hold only short answers
        if not searched[corpus.name]:
            raise CorpusError(
                f"data.curation.decontaminate: no text in {', '.join(corpus.paths)} has {options.least_words} words or "
                "more, so nothing of it would be kept out; lower least_words, or specify the fields that hold its text"
            )


def hashes_of(texts: Texts, options: DecontaminateConfig) -> Hashed:
    """The hashes to search for: of n-grams, and of whole texts that are shorter. In scripts without spaces two letters
    count as one word.
    """
    matched = matching_words(texts)
    units, alone = np.diff(matched.starts), np.diff(starts_of(matched.alone)[matched.starts])
    words = units - alone / ALONE_OF_A_WORD
    too_short = words < options.least_words
    lengths = np.minimum(units, np.rint(options.ngram * units / np.maximum(words, 1)).astype(np.int64))
    lengths[too_short] = 0
    by_length = {}
    for length in (int(each) for each in np.unique(lengths) if each):
        hashes, starts = shingles_of(matched.hashes, matched.starts, length)
        numbers = np.repeat(np.arange(len(texts)), np.diff(starts))
        own = lengths[numbers] == length
        by_length[length] = (hashes[own], numbers[own])
    return Hashed(by_length, too_short)


def describe(found: Sequence[EvaluationSet]) -> list[dict[str, str]]:
    """The files that are kept out, each with the field that is read and the digest of the content."""
    read = {(piece.path, each.corpus.text_field, piece.sha256) for each in found for piece in each.pieces}
    return [{"path": path, "field": field, "sha256": sha256} for path, field, sha256 in sorted(read)]


SHARE, FEWEST = 0.01, 3
"""An n-gram is reported if it drops more than this share of a corpus's documents, and at least this number."""


def name_frequent(
    firsts: Mapping[str, Hashes],
    documents: Mapping[str, int],
    hashes: Mapping[int, Hashes],
    examples: Mapping[int, NDArray[np.int64]],
    files: Sequence[ExampleFile],
    found: Sequence[EvaluationSet],
    transform: TransformConfig | None,
) -> list[dict[str, Any]]:
    """A line for each n-gram that drops many of a corpus's documents: its words, and the example that has them.

    A document counts for its first n-gram. `firsts` has the n-grams of dropped documents, by corpus; `hashes` and
    `examples` are those searched for, in `files`.
    """
    lines = []
    for corpus, own in firsts.items():
        found_hashes, counts = np.unique(own, return_counts=True)
        many = (counts > SHARE * documents[corpus]) & (counts >= FEWEST)
        for count, hashed in sorted(zip(counts[many].tolist(), found_hashes[many].tolist(), strict=True), reverse=True):
            length = next(length for length, each in hashes.items() if np.isin(hashed, each))
            file, record = example_of(examples[length], hashes[length], np.uint64(hashed))
            place, texts = _example(found, transform, files[file], record)
            wanted = wanted_of({length: np.array([hashed], np.uint64)})
            shared = next(filter(None, (find_words(text, wanted) for text in texts)), None)
            words = " ".join(shared.words.split()) if shared else ""
            lines.append(
                {"corpus": corpus, "documents": count, "of": documents[corpus], "words": words, "example": place}
            )
    return lines


def _example(
    found: Sequence[EvaluationSet], transform: TransformConfig | None, file: ExampleFile, record: int
) -> tuple[str, Iterator[bytes]]:
    """An example's name and its texts, given its file and its record's index in the file.

    A conversation has several texts. The file is found by its content: names may have changed since it was searched.
    """
    for each in found:
        places = [place for place, piece in enumerate(each.pieces) if piece.sha256 == file.sha256]
        if places and each.corpus.text_field == file.field:
            examples = read_examples(each, transform)
            texts = (example.text for example in examples if (example.file, example.number) == (places[0], record))
            return f"{each.pieces[places[0]].path}#{record + 1} ({file.field})", texts
    raise AssertionError("the example is in none of the evaluation sets")
