"""The space before each word of a list.

Byte-level tokenizers and Gemma's recognise a word by the space before it; without it, a list of words would be read as
one string without spaces.
"""

import json
from itertools import chain, islice
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.pre_tokenizers import ByteLevel

PREPEND = [
    {"type": "Prepend", "prepend": " "}, {"type": "Replace", "pattern": {"Regex": "^  "}, "content": " "},
]  # fmt: skip
"""Normalizers, in tokenizer.json's form, that put a space before a text that does not begin with one."""


def space_words(tokenizer: Any) -> bool:
    """Make a tokenizer put a space before each word of an example; returns whether this is only in its tokenizer.json.

    Tokenizers like GPT-2's have a setting for it. If text is split before the byte-level step, as by Llama 3, Qwen2 and
    SmolLM, that setting would put a space before each part of a word ("isn", " 't"), so a normalizer puts one before
    the whole word. So it does for others that, as a trial shows, read words as one string, like Gemma's.
    """
    backend: Tokenizer = tokenizer.backend_tokenizer
    split = backend.pre_tokenizer
    if isinstance(split, ByteLevel):
        if not split.add_prefix_space:
            split.add_prefix_space = True
            backend.pre_tokenizer = split
            tokenizer.add_prefix_space = tokenizer.init_kwargs["add_prefix_space"] = True
        return False
    present, before = backend.normalizer, [normalizers.Prepend(" "), normalizers.Replace(Regex("^  "), " ")]
    others = [] if present is None else [present]
    steps = [] if present is None else json.loads(present.__getstate__()).get("normalizers", [])
    if split is not None and _looks_up_bytes_later(json.loads(split.__getstate__())):
        if steps[-len(PREPEND) :] != PREPEND:
            backend.normalizer = normalizers.Sequence([*others, *before])
        return True
    if steps[: len(PREPEND)] == PREPEND:
        return True
    if _keeps_spaces(tokenizer):
        return False
    backend.normalizer = normalizers.Sequence([*before, *others])  # the others may replace spaces
    if not (spaced := _keeps_spaces(tokenizer)):
        backend.normalizer = present
    return spaced


PROBE = ("the", "in", "a")
"""Words that most tokenizers know; of another one, words of its vocabulary are tried."""


def _keeps_spaces(tokenizer: Any) -> bool:
    """Whether a list of words gets the ids of running text; also true if a tokenizer knows no two words."""
    backend: Tokenizer = tokenizer.backend_tokenizer

    def ids_of(text: str | list[str]) -> list[int]:
        found = backend.encode(text, is_pretokenized=isinstance(text, list), add_special_tokens=False)
        return list(found.ids)

    words = chain(PROBE, filter(str.isalpha, sorted(backend.get_vocab(False))))
    known = list(islice((each for each in words if tokenizer.unk_token_id not in ids_of(each)), len(PROBE)))
    if len(known) < 2:
        return True
    first, whole = ids_of(known[0]), ids_of(" ".join(known))
    # Otherwise, a space is no sign of a word.
    comparable = tokenizer.unk_token_id not in whole and whole[: len(first)] == first
    return not comparable or ids_of(known[1:]) == whole[len(first) :]


def _looks_up_bytes_later(split: dict[str, Any]) -> bool:
    """Whether a later pre-tokenizer of a sequence is byte-level and puts no space before the parts."""
    parts = split.get("pretokenizers", [])
    return any(part["type"] == "ByteLevel" and not part["add_prefix_space"] for part in parts)
