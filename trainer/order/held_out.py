"""Windows over held-out shards, in which every token but a shard's first is predicted once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.corpus.shards import ShardSet
from trainer.corpus.token_bytes import byte_lengths
from trainer.corpus.tokenizer import load_tokenizer
from trainer.corpus.windows import Shards
from trainer.store.storage import Store


class HeldOut(NamedTuple):
    """The windows of one corpus's held-out shards: where each begins, and the bytes of text that each token id stands for."""

    name: str
    shards: Shards
    windows: list[tuple[int, int]]
    token_bytes: NDArray[np.float64] | None = None
    end_id: int | None = None
    """The token that ends a document, where documents are told apart; None where windows are read as one text."""

    @property
    def used(self) -> list[int]:
        """The shards that the windows lie in."""
        return sorted({shard for shard, _ in self.windows})


def held_out_windows(
    name: str, shards: Shards, context: int, max_windows: int | None, token_bytes: NDArray[np.float64] | None = None
) -> HeldOut:
    """Windows that overlap by one token, so that each token but a shard's first is predicted once; or an even choice."""
    windows = [(number, start) for number, length in enumerate(shards.lengths) for start in range(0, length - 1, context - 1)]
    if max_windows is not None and len(windows) > max_windows:
        windows = [windows[int(place)] for place in np.linspace(0, len(windows) - 1, max_windows).round()]
    return HeldOut(name, shards, windows, token_bytes)


def open_held_out(
    store: Store, shards: ShardSet, context: int, max_windows: int | None, document_mask: bool = False
) -> HeldOut:
    """The held-out windows of a published set; with `document_mask`, documents are told apart in them.

    What tokens stand for is scaled so that all held-out text has the bytes that were counted when the shards were built: for a
    byte-level tokenizer this changes nothing.
    """
    totals, token_bytes = shards.details["totals"], None
    if known := totals["validation_token_bytes"]:
        lengths = byte_lengths(load_tokenizer(store, shards.details["tokenizer"]).json)
        token_bytes = lengths * (totals["validation_bytes"] / known)
    held_out = held_out_windows(shards.corpus, shards.validation, context, max_windows, token_bytes)
    return held_out._replace(end_id=shards.details["eos_id"] if document_mask else None)
