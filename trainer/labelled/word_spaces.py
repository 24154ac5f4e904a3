"""A space before each word of which one is part, as in running text, where the tokenizer does not put it there by itself.

Byte-level tokenizers know a word by the space before it: without one, words would be read as if written together.
"""

import json
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.pre_tokenizers import ByteLevel

PREPEND = [
    {"type": "Prepend", "prepend": " "}, {"type": "Replace", "pattern": {"Regex": "^  "}, "content": " "},
]  # fmt: skip
"""Put a space before a text that does not begin with one, as tokenizer.json has it."""


def space_words(tokenizer: Any) -> bool:
    """Have a tokenizer put a space before each word of an example; returns whether only its tokenizer.json can say so.

    Those of the kind of GPT-2's have a setting for it. Where text is split before its bytes are looked up, as by Llama 3, Qwen2
    and SmolLM, that setting would put a space before each part of a word ("isn", " 't"), so a normalizer puts it before all.
    """
    backend: Tokenizer = tokenizer.backend_tokenizer
    split = backend.pre_tokenizer
    if isinstance(split, ByteLevel):
        if not split.add_prefix_space:
            split.add_prefix_space = True
            backend.pre_tokenizer = split
            tokenizer.add_prefix_space = tokenizer.init_kwargs["add_prefix_space"] = True
        return False
    if split is None or not _looks_up_bytes_later(json.loads(split.__getstate__())):
        return False
    present = backend.normalizer
    if present is None or json.loads(present.__getstate__()).get("normalizers", [])[-len(PREPEND) :] != PREPEND:
        before = [normalizers.Prepend(" "), normalizers.Replace(Regex("^  "), " ")]
        backend.normalizer = normalizers.Sequence([*([] if present is None else [present]), *before])
    return True


def _looks_up_bytes_later(split: dict[str, Any]) -> bool:
    """Whether text is split in several ways of which one is byte-level and puts no space before the parts."""
    parts = split.get("pretokenizers", [])
    return any(part["type"] == "ByteLevel" and not part["add_prefix_space"] for part in parts)
