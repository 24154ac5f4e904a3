"""The order of labelled examples: each once an epoch, in batches of about the same length.

Global batch `number` is a pure function of the seed, the examples' lengths and the batch size. An epoch's examples are
permuted; stretches of `GROUP` batches are sorted by length and cut into batches, which are taken in a permuted order. So
little padding is needed, no example is read twice or left out, and finding a batch costs the same at any step.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.order.permutation import permute, stable_key

FORMAT = 2
"""Part of a run's identity: a run that began with another order is not continued with this one."""

GROUP = 8
"""Batches that are sorted together: in batches of 8, padding falls from 36 % to 7 %, and each still holds some variety."""


class EpochOrder:
    """Which examples make up a global batch; one batch of an epoch may be smaller."""

    def __init__(self, seed: int, lengths: NDArray[np.int64], global_batch: int, by_length: bool) -> None:
        self._seed, self._lengths, self._batch, self._by_length = seed, lengths, global_batch, by_length

    def examples(self, number: int) -> NDArray[np.int64]:
        """The examples of global batch `number`, of shape [at most global_batch], the longest first."""
        size, batch = len(self._lengths), self._batch
        epoch, index = divmod(number, -(-size // batch))
        first = index - index % GROUP if self._by_length else index
        places = np.arange(first * batch, min((first + GROUP if self._by_length else first + 1) * batch, size), dtype=np.uint64)
        examples = permute(places, size, stable_key(self._seed, "example", epoch)).astype(np.int64)
        # Stable, so that examples of one length stay in the permuted order, not in that of the file.
        examples = examples[np.argsort(-self._lengths[examples], kind="stable")]
        batches = -(-len(examples) // batch)
        turn = np.array([index - first], dtype=np.uint64)
        chosen = int(permute(turn, batches, stable_key(self._seed, "batch", epoch, first))[0])
        return examples[chosen * batch : (chosen + 1) * batch]
