"""What masking must know of a tokenizer: its mask token, which tokens are special, and which continue a word."""

import json
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import TokenizerError
from trainer.corpus.token_bytes import SPACE_MARK, is_byte_level
from trainer.corpus.tokenizer import TokenizerInfo, vocabulary
from trainer.corpus.word_bytes import bytes_of, continues_word

USUAL = ("[MASK]", "<mask>")


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
    rule = _rule(description, vocab)
    for token, number in vocab.items():
        continues[number] = rule(token)
    known = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    known[list(vocab.values())] = True
    return MaskTokens(mask_id, special, continues & ~special, np.flatnonzero(known & ~special))


def _rule(description: dict[str, Any], vocab: Collection[str]) -> Callable[[str], bool]:
    """By what a tokenizer's tokens tell whether they continue the word before them."""
    if prefix := description["model"].get("continuing_subword_prefix"):
        return lambda token: token.startswith(prefix)
    if any(token.startswith(SPACE_MARK) for token in vocab):
        return lambda token: not token.startswith(SPACE_MARK)
    as_text = {token["content"] for token in description.get("added_tokens", [])}
    written = bytes_of if is_byte_level(description) else str.encode
    return lambda token: continues_word(token.encode() if token in as_text else written(token))
