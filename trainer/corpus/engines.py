"""Encoding engines: plain text in, token ids out, special tokens never recognised in the text."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.models.tokenizer import TokenizerInfo

Ids = NDArray[np.uint32]
Encode = Callable[[Sequence[bytes]], list[Ids]]

CACHE_BYTES = 256 * 2**20
"""Text after which gigatoken's engine is made anew, because its word cache has no bound."""


def tokenizers_engine(tokenizer: TokenizerInfo) -> Encode:
    """The reference engine."""
    engine = Tokenizer.from_str(tokenizer.json)
    engine.encode_special_tokens = True
    engine.no_padding()
    engine.no_truncation()

    def encode(documents: Sequence[bytes]) -> list[Ids]:
        texts = [document.decode() for document in documents]
        encodings = engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    return encode


def gigatoken_engine(tokenizer: TokenizerInfo) -> Encode:
    """The fast engine. Raises whatever gigatoken raises for a tokenizer that it does not know."""
    from gigatoken import Tokenizer as Gigatoken

    description: dict[str, Any] = json.loads(tokenizer.json)
    description["added_tokens"] = [token for token in description.get("added_tokens", []) if not token["special"]]
    description["post_processor"] = None
    plain = json.dumps(description)
    engine = Gigatoken.from_json(plain)
    encoded_bytes = 0

    def encode(documents: Sequence[bytes]) -> list[Ids]:
        nonlocal engine, encoded_bytes
        if encoded_bytes > CACHE_BYTES:
            engine, encoded_bytes = Gigatoken.from_json(plain), 0
        encoded_bytes += sum(map(len, documents))
        array = engine.encode_batch(list(documents), parallel=False).layout
        offsets = np.asarray(array.offsets.data)
        ids = np.asarray(array.content.data).astype(np.uint32, copy=False)
        return [ids[start:end] for start, end in pairwise(offsets)]

    return encode


ENGINES: dict[str, Callable[[TokenizerInfo], Encode]] = {
    "gigatoken": gigatoken_engine,
    "tokenizers": tokenizers_engine,
}
