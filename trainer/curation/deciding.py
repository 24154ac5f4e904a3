"""Making decisions: their inputs (`Plan`) and the run that measures, filters and compares documents (`CurationRun`)."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError, CorpusError, StorageError
from trainer.common.progress import Bar, Progress
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig, DataConfig
from trainer.config.curation import CurationConfig, NearConfig
from trainer.config.jobs import PrepareJob
from trainer.curation.contamination import NOTHING, BorderWords, Overlap, find_overlap, name_evaluation
from trainer.curation.evaluation_sets import EvaluationSet, find_evaluation
from trainer.curation.measures import (
    Function,
    Measure,
    PlaceError,
    Score,
    Size,
    Test,
    all_tests,
    columns_of,
    of_corpus,
)
from trainer.curation.shared_keys import (
    Compared,
    Digest,
    Duplicates,
    Sharing,
    Signature,
    copies,
    find_sharing,
    forget_order,
    groups,
    is_found,
    put_in_order,
    read_sharing,
    slices,
    start_pass,
)
from trainer.curation.units import Numbering, Unit, divide, measure, number, with_address
from trainer.data.decisions import FORMAT, identities, transform_options
from trainer.data.pieces import Piece, is_cut_within_documents
from trainer.data.sources import PIECE_BYTES, column_names, find_pieces, reading_options
from trainer.data.tokenization import run_units
from trainer.engines.executors import Executor
from trainer.records.steps import CONTENTS
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

MOST_REASONS = 250
"""A document's reason is stored in one byte."""

CONTAMINATED, EXACT, NEAR = "contaminated", "exact duplicate", "near duplicate"


class Plan(NamedTuple):
    """The inputs of decisions; `recipe` is their identity."""

    recipe: dict[str, Any]
    corpora: list[tuple[CorpusConfig, list[Piece]]]
    evaluation: list[EvaluationSet]
    tests: list[Test]

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for _, pieces in self.corpora for piece in pieces)

    def test(self, corpus: str, documents: int, read: Callable[..., Sequence[NDArray[Any]]]) -> NDArray[np.uint8]:
        """The first test that each of some documents of a corpus fails, numbered from 1; 0 if none; shape [documents].

        `read` returns the documents' arrays of a measure, by name.
        """
        broken = np.zeros(documents, np.uint8)
        for by, tests in groupby(of_corpus(self.tests, corpus), key=lambda test: test.measure):
            bounds = list(tests)
            for test, values in zip(bounds, read(by, *(each.bound.field for each in bounds)), strict=True):
                broken[(broken == 0) & test.breaks(values)] = self.tests.index(test) + 1
        return broken


def make_plan(
    store: Store,
    data: DataConfig,
    advance: Callable[[int], None] = lambda size: None,
) -> Plan:
    """Find the raw files and the evaluation sets. Raises `CorpusError` and `ConfigError` for unusable ones."""
    options = data.curation
    assert options is not None
    tests = all_tests(options.filters)
    if len(tests) > MOST_REASONS:
        raise ConfigError(f"data.curation.filters have {len(tests)} bounds; expected at most {MOST_REASONS}")
    measures = measures_of(options, tests)
    measured = [measure.folder for measure in measures]  # first, because it raises for unknown functions
    evaluation = find_evaluation(store, options.decontaminate) if options.decontaminate else []
    corpora = [(corpus, find_pieces(store, corpus, data.shards.piece_bytes, advance)) for corpus in data.corpora]
    wanted = options.decontaminate
    kept_out = name_evaluation(wanted, options.transform, evaluation) if wanted else None
    recipe = {
        "format": FORMAT,
        "data.curation": options.model_dump(mode="json"),
        "data.corpora": {corpus.name: reading_options(corpus) for corpus, _ in corpora},
        PIECE_BYTES: data.shards.piece_bytes,
        CONTENTS: {
            "transformations": transform_options(options.transform),
            "functions": {each.function: each.source for each in measures if isinstance(each, Function)},
            "measures": measured,
            "kept out": kept_out,
            "text": fingerprint([[corpus.name, identities(pieces)] for corpus, pieces in corpora]),
        },
    }
    return Plan(recipe, corpora, evaluation, tests)


def reasons_of(options: CurationConfig, tests: Sequence[Test]) -> list[str]:
    """The reasons to drop documents, in the order of the tests."""
    ends = {CONTAMINATED: options.decontaminate, EXACT: options.exact, NEAR: options.near}
    return [*(test.reason for test in tests), *(reason for reason, wanted in ends.items() if wanted is not None)]


def count_reasons(reasons: NDArray[np.uint8], sizes: NDArray[np.int64], names: Sequence[str]) -> NDArray[np.int64]:
    """Documents and bytes that are kept, and dropped for each named reason; shape [2, reasons + 1]."""
    documents = np.bincount(reasons, minlength=len(names) + 1)
    return np.array([documents, np.bincount(reasons, sizes, minlength=len(names) + 1)]).astype(np.int64)


def measures_of(options: CurationConfig, tests: Sequence[Test], overlaps: Sequence[Measure] = ()) -> list[Measure]:
    """All measures to compute; `overlaps` are those that compare documents with the evaluation sets."""
    found: list[Measure] = [Size(), *(test.measure for test in tests), *overlaps]
    found += [Digest.of(options.exact)] if options.exact else []
    found += [Signature.of(options.near)] if options.near else []
    return list(dict.fromkeys(found))


def require_numbers(
    store: Store, corpus: CorpusConfig, pieces: Sequence[Piece], units: Sequence[Unit], tests: Sequence[Test]
) -> None:
    """Raise `CorpusError` if a test needs a column in which no document of the corpus has a number."""
    for score in dict.fromkeys(test.measure for test in tests if isinstance(test.measure, Score)):
        found = (unit.read(store, score, "score")[0] for unit in units)
        documents = 0
        for values in found:
            documents += len(values)
            if not np.isnan(values).all():
                break
        else:
            if documents:
                raise no_number(corpus, pieces, score.column)


def no_number(corpus: CorpusConfig, pieces: Sequence[Piece], column: str) -> CorpusError:
    """The error about a column in which no document of a corpus has a number."""
    columns = column_names(pieces[0], corpus)
    has = (
        f"has the columns {', '.join(columns)}"
        if columns
        else f"is of the format {corpus.format}, which has no columns"
    )
    return CorpusError(
        f"corpus {corpus.name!r}: no document has a number in the column {column!r}, which a filter of data.curation "
        f"needs; {pieces[0].path} {has}; correct the column, or limit the filter to other corpora"
    )


class CurationRun:
    """Decisions in progress: for each document 0 while it is kept, else the number of its reason, from 1."""

    def __init__(self, store: Store, job: PrepareJob, plan: Plan, executor: Executor, progress: Progress) -> None:
        assert job.data.curation is not None
        self.store, self.job, self.plan, self.executor, self.progress = store, job, plan, executor, progress
        self.options = job.data.curation
        self.names = reasons_of(self.options, plan.tests)
        wanted, transform = self.options.decontaminate, self.options.transform
        self.overlap: Overlap | None = find_overlap(store, wanted, transform, plan.evaluation) if wanted else None
        self.tests = {corpus.name: of_corpus(plan.tests, corpus.name) for corpus, _ in plan.corpora}
        longest = self.overlap.longest if self.overlap else 1
        self.borders = BorderWords(longest - 1) if longest > 1 else None
        self.measures: dict[str, list[Measure]] = {}
        for corpus, _ in plan.corpora:
            across = self.borders if is_cut_within_documents(corpus) else None
            overlaps = [each for each in (self.overlap, across) if each is not None]
            self.measures[corpus.name] = measures_of(self.options, self.tests[corpus.name], overlaps)
        self.size: Measure = Size()
        self.duplicates: list[Duplicates] = []
        self.compared: Compared | None = None

    def measure(self) -> None:
        """Measure every document, and number the documents."""
        units = [
            divide(corpus, pieces, self.options.transform, columns_of(self.tests[corpus.name]))
            for corpus, pieces in self.plan.corpora
        ]
        flat = sorted((unit for each in units for unit in each), key=lambda unit: unit.raw_bytes, reverse=True)
        with self.progress.bar("measure documents", self.plan.raw_bytes, "B") as bar:
            try:
                self._carry(measure, ((self.job.store, unit, self.measures[unit.corpus.name]) for unit in flat), bar)
            except PlaceError as error:
                raise with_address(error, self.plan.corpora) from error
        texts = [(corpus.name, pieces, own) for (corpus, pieces), own in zip(self.plan.corpora, units, strict=True)]
        self.numbering: Numbering = number(self.store, texts, self.size)
        self.reasons = np.zeros(self.numbering.total, np.uint8)
        self.shared: dict[str, list[NDArray[np.uint64]]] = {corpus.name: [] for corpus, _ in self.plan.corpora}

    def filter(self) -> None:
        """Apply the tests in their order, then the comparison with evaluation sets."""
        for corpus, pieces in self.plan.corpora:
            units = [each.unit for each in self.numbering.units if each.unit.corpus.name == corpus.name]
            require_numbers(self.store, corpus, pieces, units, self.tests[corpus.name])
        for each in self.numbering.units:
            check_stop()
            reasons = self.plan.test(each.unit.corpus.name, int(each.counts.sum()), partial(each.unit.read, self.store))
            if self.overlap is not None:
                (first,) = each.unit.read(self.store, self.overlap, "first")
                goes = (reasons == 0) & (first != NOTHING)
                reasons[goes] = self.number_of(CONTAMINATED)
                self.shared[each.unit.corpus.name].append(first[goes])
            self.reasons[each.documents] = reasons

        for corpus, pieces in self.plan.corpora:
            if self.borders is not None and is_cut_within_documents(corpus):
                self._filter_across(corpus.name, pieces, self.borders)

    def _filter_across(self, corpus: str, pieces: Sequence[Piece], borders: BorderWords) -> None:
        """Drop adjacent kept parts of a document that share an n-gram across their border with an evaluation set."""
        assert self.overlap is not None
        file_of = np.cumsum([0, *(one.path != other.path for one, other in pairwise(pieces))])
        files = np.repeat(file_of, self.numbering.counts[corpus])
        first, stays = self.numbering.firsts[corpus], self.reasons == 0
        parts = first + np.flatnonzero(files[:-1] == files[1:])
        parts = parts[stays[parts] & stays[parts + 1]]
        firsts, lasts = np.full((2, len(parts), borders.words), NOTHING)
        for each in self.numbering.units if len(parts) else []:
            if each.unit.corpus.name == corpus:
                its_firsts, its_lasts = each.unit.read(self.store, borders, "firsts", "lasts")
                for words, others, found in ((lasts, its_lasts, parts), (firsts, its_firsts, parts + 1)):
                    at = np.searchsorted(found, each.documents)
                    row = np.flatnonzero(found[np.minimum(at, len(found) - 1)] == each.documents)
                    words[at[row]] = others[row]
        across = self.overlap.across(lasts, firsts)
        self.shared[corpus].append(across[across != NOTHING])
        shared = parts[across != NOTHING]
        self.reasons[np.union1d(shared, shared + 1)] = self.number_of(CONTAMINATED)

    def drop_duplicates(self) -> None:
        """Drop all but the first of identical documents, then near duplicates.

        The original of an exact copy is the first of the copies, even if that one is dropped as a near duplicate.
        """
        if self.options.exact is not None:
            folder = self._start_pass(Digest.of(self.options.exact))
            self._drop(EXACT, copies(self.sharing(folder, 1, EXACT)))
        if self.options.near is not None:
            folder = self._start_pass(Signature.of(self.options.near))
            self.compared = self._compare(folder, self.options.near)
            self._drop(NEAR, self.compared.duplicates)

    def _start_pass(self, by: Measure) -> str:
        return start_pass(self.store, self.numbering.units, by, self.reasons == 0)

    def sharing(self, folder: str, keys: int, reason: str) -> Sharing:
        """The documents of a pass that share one of their keys; each document has `keys` of them."""
        url, together, wanted = self.job.store, groups(self.numbering.units, keys), slices(keys * self.numbering.total)
        missing = [each for each in wanted if not is_found(self.store, folder, each)]
        if missing:
            with self.progress.bar(f"sort keys of {reason}s", len(together), "part") as bar:
                self._carry(put_in_order, ((url, folder, group, len(wanted)) for group in together), bar)
            with self.progress.bar(f"find {reason}s", len(missing), "slice") as bar:
                self._carry(find_sharing, ((url, folder, together, each) for each in missing), bar)
        found = read_sharing(self.store, folder, wanted)
        forget_order(self.store, folder, together)
        return found

    def _compare(self, folder: str, near: NearConfig) -> Compared:
        """Compare the documents that share a key by all their n-grams, unless the store has the result."""
        from trainer.curation.near import compare, find_compared, forget_ngrams, gather, keep_compared, parts_of

        if (known := find_compared(self.store, folder, near)) is not None:
            forget_ngrams(self.store, folder, near)  # left by a pass that was interrupted before deleting them
            return known
        sharing = self.sharing(folder, near.bands, NEAR)
        candidates = np.zeros(self.numbering.total, np.bool_)
        candidates[sharing.documents] = True
        parts = parts_of(folder, near, self.numbering.units, candidates)
        total = int(candidates.sum())
        with self.progress.bar("read documents that share a key", total, "document") as bar:
            self._carry(gather, ((self.job.store, part, near.ngram) for part in parts), bar)
        try:
            with self.progress.bar("compare documents that share a key", total, "document") as bar:
                found = compare(self.store, folder, parts, sharing, near, bar)
            keep_compared(self.store, folder, near, found)
        except StorageError:
            if (known := find_compared(self.store, folder, near)) is None:
                raise
            found = known  # another curation of the same text finished first and deleted the n-grams
        forget_ngrams(self.store, folder, near)
        return found

    def _drop(self, reason: str, found: Duplicates) -> None:
        self.reasons[found.documents] = self.number_of(reason)
        self.duplicates.append(found)

    def number_of(self, reason: str) -> int:
        """The number that represents a reason."""
        return self.names.index(reason) + 1

    def _carry(self, work: Callable[..., Any], calls: Iterable[Sequence[Any]], bar: Bar) -> None:
        for _ in run_units(self.executor, bar, work, calls):
            pass
