"""How many bytes of text a token stands for: what the loss a token is divided by, to be compared between tokenizers.

Of a byte-level tokenizer the lengths are exact: those of a text's tokens add up to the text's own. Of others they are
estimates, because such tokenizers drop, join or rewrite characters; what all held-out text really has is recorded beside what
its tokens stand for, so that estimates can be scaled.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.corpus.tokenizer import vocabulary

DIGEST_BYTES = 16
BYTE_FALLBACK = re.compile(r"<0x[0-9A-F]{2}>")
ENCODING_PARTS = ("normalizer", "pre_tokenizer", "decoder")
SPACE_MARK = "\u2581"
"""What stands for a space in the tokens of SentencePiece."""

Lengths = NDArray[np.int64]


class HeldOutText:
    """Tells the held-out text of a shard, whatever tokenizer it is for: its bytes, and a digest of its documents.

    The digest is the sum of those of the documents, or of a large one's parts: the same in any order and any number of shards.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self.digest = add_digests([])
        self.text_bytes = 0
        self.token_bytes = 0

    def add(self, text: bytes, ids: NDArray[np.uint32]) -> None:
        """Take in a document and its token ids, of shape [tokens], without the end of the document."""
        self.text_bytes += len(text)
        self.token_bytes += int(self._lengths[ids].sum())
        self.digest = add_digests([self.digest, hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()])


def add_digests(digests: Iterable[str]) -> str:
    """The digest of all documents, from those of each or of groups of them: their sum."""
    return f"{sum(int(each, 16) for each in digests) % 256**DIGEST_BYTES:0{2 * DIGEST_BYTES}x}"


@lru_cache(maxsize=8)
def byte_lengths(tokenizer: str) -> Lengths:
    """The bytes of text that each token id stands for, of shape [largest id + 1]; none for special and unknown tokens.

    `tokenizer` is the content of its tokenizer.json.
    """
    description: dict[str, Any] = json.loads(tokenizer)
    ids = vocabulary(tokenizer)
    added = {token["id"]: token for token in description.get("added_tokens", [])}
    model = description["model"]
    of_bytes = is_byte_level(description)
    unknown = model.get("unk_token")
    lengths = np.zeros(max(ids.values()) + 1, dtype=np.int64)
    for token, number in ids.items():
        if number in added:
            lengths[number] = 0 if added[number]["special"] else len(token.encode())
        elif token != unknown and number != model.get("unk_id"):
            lengths[number] = len(token) if of_bytes else _estimate(token, model)
    return lengths


def is_byte_level(description: dict[str, Any]) -> bool:
    """Whether each character of a tokenizer's tokens stands for a byte."""
    return "ByteLevel" in {kind for part in ENCODING_PARTS for kind in _types(description.get(part))}


def _estimate(token: str, model: dict[str, Any]) -> int:
    if BYTE_FALLBACK.fullmatch(token):
        return 1
    prefix = model.get("continuing_subword_prefix") or ""
    return len(token.removeprefix(prefix).replace(SPACE_MARK, " ").encode())


def _types(part: dict[str, Any] | None) -> Iterator[str]:
    """The types of a part of a tokenizer's description, and of the parts that it is a sequence of."""
    if part is not None:
        yield part["type"]
        for each in (*part.get("normalizers", ()), *part.get("pretokenizers", ()), *part.get("decoders", ())):
            yield from _types(each)
