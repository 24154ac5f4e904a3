"""What masking must know of a tokenizer: its mask token, which tokens are special, and which continue a word."""

import json
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import TokenizerError
from trainer.corpus.token_bytes import SPACE_MARK
from trainer.corpus.tokenizer import TokenizerInfo, vocabulary

USUAL = ("[MASK]", "<mask>")
BYTE_SPACES = "ĠĊĉč"
"""How a byte-level tokenizer writes a space, a line's end, a tab and a carriage return."""


class MaskTokens(NamedTuple):
    """The id of the mask token; of each id whether it is special, and whether it continues the word before it; ordinary ids."""

    mask_id: int
    special: NDArray[np.bool_]
    continues: NDArray[np.bool_]
    ordinary: NDArray[np.int64]


@lru_cache(maxsize=8)
def mask_tokens(tokenizer: TokenizerInfo, named: str | None) -> MaskTokens:
    """Of a tokenizer, whose mask token may be named. Raises `TokenizerError` if it has none."""
    description: dict[str, Any] = json.loads(tokenizer.json)
    special_ids = {token["id"] for token in description.get("added_tokens", []) if token["special"]}
    vocab = vocabulary(tokenizer.json)
    mask_id = next((vocab[name] for name in ([named] if named else USUAL) if name in vocab), None)
    if mask_id is None or mask_id not in special_ids:
        names = sorted(token for token, number in vocab.items() if number in special_ids)
        found = f"has no special token {named!r}" if named else f"has none of the mask tokens {' and '.join(USUAL)}"
        raise TokenizerError(
            f"a masked model needs a mask token, but the tokenizer {found}; its special tokens are "
            f"{', '.join(names) or 'none'}: set training.masking.mask_token to one of them that stands for nothing else, take "
            "another tokenizer, or train one with data.tokenizer.mask_token"
        )
    special, continues = np.zeros(tokenizer.vocab_size, dtype=np.bool_), np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    special[list(special_ids)] = True
    prefix = description["model"].get("continuing_subword_prefix")
    for token, number in vocab.items():
        continues[number] = token.startswith(prefix) if prefix else token[:1].isalnum() and token[:1] not in BYTE_SPACES
    if not prefix and any(token.startswith(SPACE_MARK) for token in vocab):
        for token, number in vocab.items():
            continues[number] = not token.startswith(SPACE_MARK)
    known = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    known[list(vocab.values())] = True
    return MaskTokens(mask_id, special, continues & ~special, np.flatnonzero(known & ~special))
