"""How long examples are in tokens, and how many are cut, before anything is encoded: by a sample, evenly spread."""

from collections.abc import Iterable
from itertools import islice

import numpy as np

from trainer.labelled.blocks import in_blocks
from trainer.labelled.data import Example
from trainer.labelled.text_encoder import TextEncoder
from trainer.records.results import Lengths

SAMPLED = 2000
"""Examples of a split that are measured."""

MOST_CHARACTERS = 64
"""Characters of a text, for each token that the model is given, that are measured: what is longer is cut in any case."""

BLOCK_EXAMPLES, BLOCK_CHARACTERS = 512, 2**20


def measure_lengths(examples: Iterable[Example], count: int, encoder: TextEncoder) -> Lengths:
    """The lengths of some of `count` examples."""
    lengths: list[int] = []
    cut = 0
    sample = islice(examples, 0, None, max(1, count // SAMPLED))
    for block in in_blocks((_shortened(each, encoder) for each in sample), BLOCK_EXAMPLES, BLOCK_CHARACTERS):
        encodings = encoder.encode([each.texts for each in block])
        lengths += [len(each.input_ids) for each in encodings]
        cut += sum(each.truncated for each in encodings)
    mean = float(np.mean(lengths)) if lengths else 0.0
    return Lengths(examples=len(lengths), mean=mean, longest=max(lengths, default=0), most=encoder.max_length, cut=cut)


def _shortened(example: Example, encoder: TextEncoder) -> Example:
    if encoder.by_words:
        return example
    return example._replace(texts=tuple(text[: MOST_CHARACTERS * encoder.max_length] for text in example.texts))
