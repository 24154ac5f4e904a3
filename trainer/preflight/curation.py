"""Estimate of what curation would drop, from a sample of documents, before long work starts."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.stopping import check_stop
from trainer.config.corpora import DataConfig
from trainer.curation.characters import Hashes
from trainer.curation.contamination import NOTHING, Wanted, find_shared, look_for, name_frequent, wanted_of
from trainer.curation.deciding import CONTAMINATED, EXACT, NEAR, Plan, count_reasons, make_plan, no_number, reasons_of
from trainer.curation.descriptions import describe_frequent
from trainer.curation.measures import Batch, Measure, Place, PlaceError, Rows, Score, Size, columns_of, of_corpus
from trainer.curation.texts import matching_words
from trainer.curation.units import with_address
from trainer.data.decisions import read_curated
from trainer.data.readers import Document, ignore
from trainer.data.shards import batches, text_bytes
from trainer.data.sources import column_names
from trainer.data.tokenizer_training import spread
from trainer.records.results import CurationPreview, RuleShare
from trainer.store.storage import Store

SAMPLED_DOCUMENTS = 1000
FROM_A_PIECE = 8
BATCH_BYTES = 2**20


class Tried(NamedTuple):
    """Number and bytes of a corpus's sampled documents dropped per reason, of shape [2, reasons + 1], and the first
    n-gram that each contaminated document shares.
    """

    counts: NDArray[np.int64]
    firsts: Hashes


def preview_curation(store: Store, data: DataConfig) -> CurationPreview:
    """Estimate how many documents are dropped for each reason, by corpus; only a document's first reason counts.

    Duplicates are not estimated, because a sample rarely contains both copies. Raises `CorpusError` and `ConfigError`
    for unusable raw text, evaluation sets and functions.
    """
    options = data.curation
    assert options is not None
    plan = make_plan(store, data)
    looked_for = look_for(options.decontaminate, options.transform, plan.evaluation) if options.decontaminate else None
    wanted = wanted_of(looked_for.hashes) if looked_for else []
    names = reasons_of(options, plan.tests)
    tried = {corpus.name: _try(plan, data, corpus.name, wanted, names) for corpus in data.corpora}
    frequent: list[dict[str, Any]] = []
    if looked_for:
        frequent = name_frequent(
            {corpus: own.firsts for corpus, own in tried.items()},
            {corpus: int(own.counts[0].sum()) for corpus, own in tried.items()},
            looked_for.hashes, looked_for.examples, looked_for.files, plan.evaluation, options.transform,
        )  # fmt: skip
    return CurationPreview(
        shares=[share for corpus, own in tried.items() for share in _shares(plan, corpus, own, names)],
        unestimated=[reason for reason in names if reason in (EXACT, NEAR)],
        warnings=[f"in a sample of the text, {warning}" for warning in describe_frequent(frequent)],
    )


def _try(plan: Plan, data: DataConfig, corpus: str, wanted: list[Wanted], names: list[str]) -> Tried:
    """Apply a corpus's rules, in order, and then the decontamination to a sample of its documents."""
    counts, firsts = np.zeros((2, len(names) + 1), np.int64), [np.empty(0, np.uint64)]
    measures = dict.fromkeys(test.measure for test in of_corpus(plan.tests, corpus))
    places: list[Place] = []
    unseen = {measure for measure in measures if isinstance(measure, Score)}
    sampled = _sample(plan, data, corpus, places) if measures or wanted else ()
    for documents in batches(sampled, BATCH_BYTES, text_bytes):
        check_stop()
        batch = Batch(documents, places)
        try:
            rows = {measure: measure(batch) for measure in measures}
        except PlaceError as error:
            raise with_address(error, plan.corpora) from error
        places.clear()
        unseen -= {each for each in unseen if not np.isnan(rows[each]["score"]).all()}
        reasons = plan.test(corpus, len(documents), partial(_fields, rows))
        if wanted:
            words = matching_words(batch.matching)
            first = find_shared(wanted, words.hashes, words.starts)["first"]
            goes = (reasons == 0) & (first != NOTHING)
            reasons[goes] = names.index(CONTAMINATED) + 1
            firsts.append(first[goes])
        counts += count_reasons(reasons, Size()(batch)["bytes"], names)
    (options, pieces), *_ = [each for each in plan.corpora if each[0].name == corpus]
    for score in unseen if pieces else ():
        if score.column not in column_names(pieces[0], options):
            raise no_number(options, pieces, score.column)
    return Tried(counts, np.concatenate(firsts))


def _fields(rows: Mapping[Measure, Rows], of: Measure, *names: str) -> list[NDArray[Any]]:
    return [rows[of][name] for name in names]


def _shares(plan: Plan, corpus: str, tried: Tried, names: list[str]) -> Iterator[RuleShare]:
    """Yield the share of each reason for which documents of a corpus may be dropped."""
    (of, of_bytes) = tried.counts.sum(axis=1).tolist()
    for reason in [*(test.reason for test in of_corpus(plan.tests, corpus)), CONTAMINATED]:
        if reason in names:
            dropped, size = tried.counts[:, names.index(reason) + 1].tolist()
            yield RuleShare(corpus=corpus, reason=reason, dropped=dropped, of=of, dropped_bytes=size, of_bytes=of_bytes)


def _sample(plan: Plan, data: DataConfig, corpus: str, places: list[Place]) -> Iterator[Document]:
    """Yield documents spread over a corpus: its share of the whole sample, a few from each piece. Appends the location
    of each to `places`.
    """
    assert data.curation is not None
    ((options, pieces),) = [each for each in plan.corpora if each[0].name == corpus]
    wanted = max(1, SAMPLED_DOCUMENTS * sum(piece.size for piece in pieces) // max(1, plan.raw_bytes))
    of_each = max(FROM_A_PIECE, -(-wanted // max(1, len(pieces))))
    columns = columns_of(of_corpus(plan.tests, corpus))
    looked_at = 0
    for piece in spread(pieces):
        documents = read_curated(piece, options, ignore, data.curation.transform, columns=columns)
        for number, document in enumerate(islice(documents, min(of_each, wanted - looked_at))):
            looked_at += 1
            places.append((corpus, piece, number))
            yield document
