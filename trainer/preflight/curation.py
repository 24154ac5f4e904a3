"""What curation would drop, guessed from a sample of documents, before any long work."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from trainer.common.stopping import check_stop
from trainer.config.corpora import DataConfig
from trainer.corpus.curated import read_curated
from trainer.corpus.pieces import Piece
from trainer.corpus.readers import Document, ignore, read_documents, refuse
from trainer.corpus.shards import batches
from trainer.corpus.tokenizer_making import spread
from trainer.curation.measures import Batch, DocumentError, unique
from trainer.curation.places import PlaceError, with_address
from trainer.curation.plan import Plan, make_plan
from trainer.curation.rules import Test, columns_of, of_corpus
from trainer.records.results import RuleShare
from trainer.store.storage import Store

SAMPLED_DOCUMENTS = 1000
FROM_A_PIECE = 8
BATCH_BYTES = 2**20


def preview_curation(store: Store, data: DataConfig) -> list[RuleShare]:
    """How many documents of a sample each bound would drop, by corpus; the first that a document breaks counts.

    Raises `CorpusError` and `ConfigError` for raw text, evaluation sets and functions that cannot be used.
    """
    plan = make_plan(store, data)
    for evaluated, pieces in plan.evaluation:  # whether it can be read
        next((text for piece in pieces for text in read_documents(piece, evaluated, refuse)), None)
    shares = []
    for corpus in data.corpora:
        tests = of_corpus(plan.tests, corpus.name)
        dropped, total = dict.fromkeys((test.reason for test in tests), 0), 0
        if tests:
            places: list[tuple[Piece, int]] = []
            for documents in batches(_sample(plan, data, corpus.name, places), BATCH_BYTES):
                check_stop()
                total += len(documents)
                try:
                    found = _try(Batch(documents), tests)
                except DocumentError as error:
                    found_at = PlaceError(corpus.name, *places[error.number], str(error))
                    raise with_address(found_at, plan.corpora) from error
                places.clear()
                for reason, count in found.items():
                    dropped[reason] += count
        shares += [RuleShare(corpus=corpus.name, reason=reason, dropped=count, of=total) for reason, count in dropped.items()]
    return shares


def _try(batch: Batch, tests: list[Test]) -> dict[str, int]:
    rows = {measure: measure(batch) for measure in unique([test.measure for test in tests])}
    left = np.ones(len(batch.documents), bool)
    counts = {}
    for test in tests:
        broken = left & test.breaks(rows[test.measure][test.bound.field])
        counts[test.reason] = int(broken.sum())
        left &= ~broken
    return counts


def _sample(plan: Plan, data: DataConfig, corpus: str, places: list[tuple[Piece, int]]) -> Iterator[Document]:
    """Documents from all over a corpus: its share of all that are looked at, some from a piece. Adds each one's to `places`."""
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
            places.append((piece, number))
            yield document
