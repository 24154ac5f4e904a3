"""What curation would drop, guessed from a sample of documents, before any long work."""

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from trainer.common.stopping import check_stop
from trainer.config.corpora import DataConfig
from trainer.corpus.curated import read_curated
from trainer.corpus.pieces import Piece
from trainer.corpus.readers import Document, ignore
from trainer.corpus.shards import batches
from trainer.corpus.tokenizer_making import spread
from trainer.curation.characters import Hashes
from trainer.curation.contamination import look_for
from trainer.curation.measures import Batch, DocumentError, unique
from trainer.curation.overlaps import count_shared
from trainer.curation.places import PlaceError, with_address
from trainer.curation.plan import CONTAMINATED, Plan, make_plan, reasons_of
from trainer.curation.rules import Test, columns_of, of_corpus
from trainer.curation.texts import said_words
from trainer.records.results import CurationPreview, RuleShare
from trainer.store.storage import Store

SAMPLED_DOCUMENTS = 1000
FROM_A_PIECE = 8
BATCH_BYTES = 2**20


def preview_curation(store: Store, data: DataConfig) -> CurationPreview:
    """How many documents of a sample go for each reason, by corpus; the first reason that applies to a document counts.

    Of duplicates it tells nothing: those of a document are hardly ever in one sample with it. Raises `CorpusError` and
    `ConfigError` for raw text, evaluation sets and functions that cannot be used.
    """
    options = data.curation
    assert options is not None
    plan = make_plan(store, data)
    wanted = options.decontaminate
    looked_for = look_for(wanted, options.transform, plan.evaluation).hashes if wanted else {}
    shares = []
    for corpus in data.corpora:
        tests = of_corpus(plan.tests, corpus.name)
        dropped = dict.fromkeys([*(test.reason for test in tests), *([CONTAMINATED] if wanted else [])], 0)
        total = 0
        if dropped:
            places: list[tuple[Piece, int]] = []
            for documents in batches(_sample(plan, data, corpus.name, places), BATCH_BYTES):
                check_stop()
                total += len(documents)
                try:
                    found = _try(Batch(documents), tests, looked_for)
                except DocumentError as error:
                    found_at = PlaceError(corpus.name, *places[error.number], str(error))
                    raise with_address(found_at, plan.corpora) from error
                places.clear()
                for reason, count in found.items():
                    dropped[reason] += count
        shares += [RuleShare(corpus=corpus.name, reason=reason, dropped=count, of=total) for reason, count in dropped.items()]
    duplicates = [reason for reason in reasons_of(options, []) if reason != CONTAMINATED]
    return CurationPreview(shares=shares, unestimated=duplicates)


def _try(batch: Batch, tests: list[Test], looked_for: Mapping[int, Hashes]) -> dict[str, int]:
    rows = {measure: measure(batch) for measure in unique([test.measure for test in tests])}
    left = np.ones(len(batch.documents), bool)
    counts = {}
    for test in tests:
        broken = left & test.breaks(rows[test.measure][test.bound.field])
        counts[test.reason] = int(broken.sum())
        left &= ~broken
    if looked_for:
        shared = batch.composed(lambda texts: count_shared(looked_for, *said_words(texts)))
        counts[CONTAMINATED] = int((left & (shared > 0)).sum())
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
