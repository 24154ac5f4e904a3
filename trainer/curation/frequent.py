"""N-grams of evaluation sets that many documents of a corpus have: a licence's sentence, rather than an example that leaked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config.curation import TransformConfig
from trainer.curation.characters import Hashes
from trainer.curation.evaluation_sets import EvaluationSet, read_examples
from trainer.curation.examples import example_of
from trainer.curation.overlaps import wanted_of
from trainer.curation.sharing import find_words

SHARE, FEWEST = 0.01, 3
"""Of a corpus's documents one n-gram drops more than this share, and at least so many, when it is told."""


def most_frequent(firsts: Hashes, documents: int) -> dict[int, int]:
    """The n-grams that drop many of a corpus's documents, and how many; a document counts for the first that it has."""
    hashes, counts = np.unique(firsts, return_counts=True)
    many = (counts > SHARE * documents) & (counts >= FEWEST)
    found = sorted(zip(counts[many].tolist(), hashes[many].tolist(), strict=True), reverse=True)
    return {hashed: count for count, hashed in found}


def name_frequent(
    firsts: Mapping[str, Hashes],
    documents: Mapping[str, int],
    hashes: Mapping[int, Hashes],
    examples: Mapping[int, NDArray[np.int64]],
    found: Sequence[EvaluationSet],
    transform: TransformConfig | None,
) -> list[dict[str, Any]]:
    """A line for each such n-gram of each corpus: its words, and the example that has them.

    `firsts` are the n-grams for which documents went, by corpus; `hashes` and `examples` are what is looked for.
    """
    lines = []
    for corpus, own in firsts.items():
        for hashed, count in most_frequent(own, documents[corpus]).items():
            length = next(length for length, each in hashes.items() if np.isin(hashed, each))
            file, record = example_of(examples[length], hashes[length], np.uint64(hashed))
            place, texts = _example(found, transform, file, record)
            wanted = wanted_of({length: np.array([hashed], np.uint64)})
            shared = next(filter(None, (find_words(text, wanted) for text in texts)), None)
            words = " ".join(shared.words.split()) if shared else ""
            lines.append({"corpus": corpus, "documents": count, "of": documents[corpus], "words": words, "example": place})
    return lines


def _example(
    found: Sequence[EvaluationSet], transform: TransformConfig | None, file: int, record: int
) -> tuple[str, Iterator[bytes]]:
    """An example by its file, counted over all sets, and its record there: what it is called, and its texts.

    A conversation has several.
    """
    for each in found:
        if file < len(each.pieces):
            examples = read_examples(each, transform)
            texts = (example.text for example in examples if (example.file, example.number) == (file, record))
            return f"{each.pieces[file].path}#{record + 1} ({each.corpus.text_field})", texts
        file -= len(each.pieces)
    raise AssertionError("an example of none of the evaluation sets")
