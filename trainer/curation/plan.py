"""What is to be decided: the raw text of all corpora, the tests that each document is put to, and what those
measure.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainer.common.errors import ConfigError
from trainer.config.corpora import CorpusConfig, DataConfig
from trainer.config.curation import CurationConfig
from trainer.curation.contamination import name_evaluation
from trainer.curation.evaluation_sets import EvaluationSet, find_evaluation
from trainer.curation.measures import Measure, unique
from trainer.curation.rules import Test, all_tests
from trainer.curation.shared_keys import Digest, Signature
from trainer.curation.text_measures import Function, Size
from trainer.data.decisions import FORMAT, identities, transform_options
from trainer.data.pieces import Piece
from trainer.data.sources import PIECE_BYTES, find_pieces, reading_options
from trainer.records.steps import CONTENTS
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

MOST_REASONS = 250
"""A document's reason is one byte."""

CONTAMINATED, EXACT, NEAR = "contaminated", "exact duplicate", "near duplicate"


class Plan(NamedTuple):
    """All that decisions depend on; `recipe` names them."""

    recipe: dict[str, Any]
    corpora: list[tuple[CorpusConfig, list[Piece]]]
    evaluation: list[EvaluationSet]
    tests: list[Test]

    @property
    def raw_bytes(self) -> int:
        return sum(piece.size for _, pieces in self.corpora for piece in pieces)


def make_plan(
    store: Store,
    data: DataConfig,
    advance: Callable[[int], None] = lambda size: None,
) -> Plan:
    """Look at the raw files and the evaluation sets. Raises `CorpusError` and `ConfigError` for what cannot be used."""
    options = data.curation
    assert options is not None
    tests = all_tests(options.filters)
    if len(tests) > MOST_REASONS:
        raise ConfigError(f"data.curation.filters have {len(tests)} bounds; at most {MOST_REASONS} can be told apart")
    measured = [measure.folder for measure in measures_of(options, tests)]  # first, as it refuses unknown functions
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
            "functions": functions_of(tests),
            "measures": measured,
            "kept out": kept_out,
            "text": fingerprint([[corpus.name, identities(pieces)] for corpus, pieces in corpora]),
        },
    }
    return Plan(recipe, corpora, evaluation, tests)


def functions_of(tests: Sequence[Test]) -> dict[str, str]:
    """The functions of the user's that documents are put to, each with the digest of the files that it comes from."""
    return {test.measure.function: test.measure.source for test in tests if isinstance(test.measure, Function)}


def reasons_of(options: CurationConfig, tests: Sequence[Test]) -> list[str]:
    """Why documents go, in the order in which it is tried."""
    ends = {CONTAMINATED: options.decontaminate, EXACT: options.exact, NEAR: options.near}
    return [*(test.reason for test in tests), *(reason for reason, wanted in ends.items() if wanted is not None)]


def measures_of(options: CurationConfig, tests: Sequence[Test], overlaps: Sequence[Measure] = ()) -> list[Measure]:
    """All that is measured; `overlaps` is what is of the evaluation sets."""
    found: list[Measure] = [Size(), *(test.measure for test in tests), *overlaps]
    found += [Digest.of(options.exact)] if options.exact else []
    found += [Signature.of(options.near)] if options.near else []
    return unique(found)
