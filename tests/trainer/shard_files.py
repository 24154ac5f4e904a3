"""Shards built in this process, and read back: through their files alone, or as training reads them."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.trainer.raw_files import WHOLE, pieces_of
from trainer.data.encoders import ENGINES
from trainer.data.pieces import assigned
from trainer.data.shard_building import Recipe, ShardWork, shard_documents
from trainer.data.shard_files import ShardFiles
from trainer.data.shards import ShardRecord, build_shard
from trainer.models.tokenizer import TokenizerInfo

Ids = list[int]


class Arrays(list[np.ndarray]):
    """Shards in memory, in the place of files."""

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self]

    def read(self, number: int, start: int, stop: int) -> np.ndarray:
        """A stretch of one of them."""
        return self[number][start:stop]

    def use(self, now: Iterable[int], ahead: Sequence[int] = ()) -> None:
        """They are always there."""


class Side(NamedTuple):
    """One side of a shard: all its ids, and those of each entry of its index."""

    ids: Ids
    entries: list[Ids]


def read_side(folder: Path, side: str, number: int, dtype: Any) -> Side:
    """Read one side's two files, and check that the index spans the ids."""
    ids = np.fromfile(folder / f"{side}-{number:05d}.bin", dtype=dtype)
    starts = np.fromfile(folder / f"{side}-{number:05d}.idx", dtype="<u8")
    assert starts[0] == 0
    assert starts[-1] == len(ids)
    assert (np.diff(starts.astype(np.int64)) > 0).all()
    return Side(ids.tolist(), [part.tolist() for part in np.split(ids, starts[1:-1])] if len(starts) > 1 else [])


def whole(shards: ShardFiles) -> list[np.ndarray]:
    """All tokens of each shard, as training reads them."""
    return [shards.read(number, 0, length) for number, length in enumerate(shards.lengths)]


def build(
    folder: Path,
    raw: Path | str,
    tokenizer: TokenizerInfo,
    engine: str = "tokenizers",
    held_out: float = 0.0,
    piece_bytes: int = WHOLE,
    group: int = 0,
    groups: int = 1,
    **options: Any,
) -> ShardRecord:
    """Build shard 3 of some raw files, or of what one of several groups has of them, as one worker does."""
    corpus, pieces = pieces_of(raw, piece_bytes, **options)
    pieces = assigned(pieces, groups)[group]
    folder.mkdir(parents=True, exist_ok=True)
    encode = ENGINES[engine](tokenizer)
    recipe = Recipe("", "", corpus, "", engine, held_out)
    shard = ShardWork(3, "name", tuple(pieces))
    documents = partial(shard_documents, recipe, shard, lambda size: None)
    return build_shard(
        folder, 3, "name", shard.raw_bytes, documents, corpus.max_bad_records, tokenizer, encode, held_out
    )
