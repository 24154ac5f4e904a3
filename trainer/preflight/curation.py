"""What curation would drop, guessed from a sample of documents, before any long work."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.stopping import check_stop
from trainer.config.corpora import DataConfig
from trainer.curation.contamination import NOTHING, Wanted, find_shared, look_for, name_frequent, wanted_of
from trainer.curation.deciding import CONTAMINATED, Plan, make_plan, reasons_of
from trainer.curation.measures import Batch, Place, PlaceError, Test, columns_of, of_corpus, unique
from trainer.curation.telling import tell_frequent
from trainer.curation.texts import matching_words
from trainer.curation.units import with_address
from trainer.data.decisions import read_curated
from trainer.data.readers import Document, ignore
from trainer.data.shards import batches, text_bytes
from trainer.data.tokenizer_training import spread
from trainer.records.results import CurationPreview, RuleShare
from trainer.store.storage import Store

SAMPLED_DOCUMENTS = 1000
FROM_A_PIECE = 8
BATCH_BYTES = 2**20


class Tried:
    """What went of a corpus's sampled documents: by reason how many, and their bytes; and those n-grams that they
    share.
    """

    def __init__(self, tests: Sequence[Test], wanted: list[Wanted]) -> None:
        self.tests, self.wanted = tests, wanted
        reasons = [*(test.reason for test in tests), *([CONTAMINATED] if wanted else [])]
        self.dropped: dict[str, NDArray[np.int64]] = {reason: np.zeros(2, np.int64) for reason in reasons}
        self.total, self.firsts = np.zeros(2, np.int64), np.zeros(0, np.uint64)

    def add(self, batch: Batch) -> None:
        """Put some documents to the tests, in their order, and then to that of the evaluation sets."""
        rows = {measure: measure(batch) for measure in unique([test.measure for test in self.tests])}
        sizes = np.array([len(document.text) for document in batch.documents])
        left = np.ones(len(sizes), bool)
        self.total += _count(left, sizes)
        for test in self.tests:
            broken = left & test.breaks(rows[test.measure][test.bound.field])
            self.dropped[test.reason] += _count(broken, sizes)
            left &= ~broken
        if self.wanted:
            said = matching_words(batch.matching)
            firsts = find_shared(self.wanted, said.hashes, said.starts)["first"]
            shared = left & (firsts != NOTHING)
            self.dropped[CONTAMINATED] += _count(shared, sizes)
            self.firsts = np.concatenate([self.firsts, firsts[shared]])

    def shares(self, corpus: str) -> list[RuleShare]:
        """What is told of each reason."""
        (of, of_bytes) = self.total.tolist()
        return [
            RuleShare(corpus=corpus, reason=reason, dropped=dropped, of=of, dropped_bytes=size, of_bytes=of_bytes)
            for reason, (dropped, size) in ((reason, counts.tolist()) for reason, counts in self.dropped.items())
        ]


def _count(documents: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([documents.sum(), sizes[documents].sum()])


def preview_curation(store: Store, data: DataConfig) -> CurationPreview:
    """How many documents of a sample go for each reason, by corpus; the first reason that applies to a document counts.

    Of duplicates it tells nothing: those of a document are hardly ever in one sample with it. Raises `CorpusError` and
    `ConfigError` for raw text, evaluation sets and functions that cannot be used.
    """
    options = data.curation
    assert options is not None
    plan = make_plan(store, data)
    looked_for = look_for(options.decontaminate, options.transform, plan.evaluation) if options.decontaminate else None
    wanted = wanted_of(looked_for.hashes) if looked_for else []
    tried = {corpus.name: Tried(of_corpus(plan.tests, corpus.name), wanted) for corpus in data.corpora}
    for corpus, own in tried.items():
        if own.dropped:
            _try(plan, data, corpus, own)
    frequent: list[dict[str, Any]] = []
    if looked_for:
        frequent = name_frequent(
            {corpus: own.firsts for corpus, own in tried.items()},
            {corpus: int(own.total[0]) for corpus, own in tried.items()},
            looked_for.hashes, looked_for.examples, plan.evaluation, options.transform,
        )  # fmt: skip
    return CurationPreview(
        shares=[share for corpus, own in tried.items() for share in own.shares(corpus)],
        unestimated=[reason for reason in reasons_of(options, []) if reason != CONTAMINATED],
        warnings=list(tell_frequent(frequent)),
    )


def _try(plan: Plan, data: DataConfig, corpus: str, tried: Tried) -> None:
    places: list[Place] = []
    for documents in batches(_sample(plan, data, corpus, places), BATCH_BYTES, text_bytes):
        check_stop()
        try:
            tried.add(Batch(documents, places))
        except PlaceError as error:
            raise with_address(error, plan.corpora) from error
        places.clear()


def _sample(plan: Plan, data: DataConfig, corpus: str, places: list[Place]) -> Iterator[Document]:
    """Documents from all over a corpus: its share of all that are looked at, some from a piece. Adds each one's to
    `places`.
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
