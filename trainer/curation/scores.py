"""Scores that the data has in columns beside the text: a column that no document has is an error, not a low score."""

from collections.abc import Sequence

import numpy as np

from trainer.common.errors import CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.curation.measuring import Unit
from trainer.curation.rules import Test
from trainer.curation.text_measures import Score
from trainer.data.pieces import Piece
from trainer.data.sources import column_names
from trainer.store.storage import Store


def require_numbers(
    store: Store, corpus: CorpusConfig, pieces: Sequence[Piece], units: Sequence[Unit], tests: Sequence[Test]
) -> None:
    """Raise `CorpusError` for a column that a corpus's tests ask for, and in which none of its documents has a number."""
    for measure in dict.fromkeys(test.measure for test in tests if isinstance(test.measure, Score)):
        found = (unit.read(store, measure, "score")[0] for unit in units)
        documents = 0
        for scores in found:
            documents += len(scores)
            if not np.isnan(scores).all():
                break
        else:
            if documents:
                raise _no_number(corpus, pieces, measure.column)


def _no_number(corpus: CorpusConfig, pieces: Sequence[Piece], column: str) -> CorpusError:
    there = column_names(pieces[0], corpus)
    has = f"has the columns {', '.join(there)}" if there else f"is of the format {corpus.format}, which has no columns"
    return CorpusError(
        f"corpus {corpus.name!r}: no document has a number in the column {column!r}, which a filter of data.curation asks for; "
        f"{pieces[0].path} {has}; correct the column, or limit the filter to other corpora"
    )
