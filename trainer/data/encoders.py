"""Encoders: plain text in, token ids out. `gigatoken` is used only where its ids equal those of `tokenizers`."""

import hashlib
import json
import logging
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers

from trainer.common.errors import shortened
from trainer.models.tokenizer import TokenizerInfo, normalizers_of, text_only, text_reader
from trainer.records.sealed import recall_sealed, write_sealed
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

log = logging.getLogger(__name__)


Ids = NDArray[np.uint32]
Encode = Callable[[Sequence[bytes]], list[Ids]]

NFC = "NFC"
"""The type of a tokenizer's normalizer that composes characters (Qwen)."""

CHANGING = re.compile(
    "[^\0-\u02ff\u0400-\u0482\u048a-\u052f\u2010-\u2027\u3000-\u3029\u3040-\u3098\u30a0-\u30ff\u4e00-\u9fff\uac00-\ud7a3]"
)
"""A character that NFC may change, or join to another. Latin, Cyrillic, Chinese, Japanese and Korean text has few; to
search is faster than NFC."""

CACHE_BYTES = 256 * 2**20
"""After this much text gigatoken's engine is recreated, because its word cache grows without bound."""


def tokenizers_engine(tokenizer: TokenizerInfo) -> Encode:
    """The reference engine."""
    engine = text_reader(tokenizer.json, tokenizer.eos_id)
    engine.no_padding()
    engine.no_truncation()

    def encode(documents: Sequence[bytes]) -> list[Ids]:
        texts = [document.decode() for document in documents]
        encodings = engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    return encode


def gigatoken_engine(tokenizer: TokenizerInfo) -> Encode:
    """The fast engine. Raises whatever gigatoken raises for a tokenizer that it does not support.

    Raises `ValueError` for added tokens that match whole words only: gigatoken would find them within words too.
    Text is normalised by `tokenizers`, not by gigatoken, whose tables are of another version of Unicode.
    """
    from gigatoken import Tokenizer as Gigatoken

    description = text_only(tokenizer.json, tokenizer.eos_id)
    if any(token["single_word"] for token in description["added_tokens"]):
        raise ValueError("it has added tokens that match whole words only (single_word)")
    composing = NFC in (normalizers_used := normalizers_of(description))
    if composing and normalizers_used != {NFC}:
        raise ValueError(f"it has the normalizers {' and '.join(sorted(normalizers_used))}")
    plain = json.dumps({**description, "normalizer": None} if composing else description)
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

    return _composing(encode, tokenizer, description["added_tokens"]) if composing else encode


def _composing(encode: Encode, tokenizer: TokenizerInfo, added: list[dict[str, Any]]) -> Encode:
    """The encoder of a tokenizer with the normalizer NFC, from one that does not normalise.

    Added tokens that are not `normalized` are found before text is normalised. A part of a text in NFC is in NFC too,
    so that makes no difference in such a text; another one that contains such a token is left to the reference engine.
    Raises `ValueError` for an added token that is `normalized` and not in NFC.
    """
    compose = normalizers.NFC().normalize_str
    reference = cache(partial(tokenizers_engine, tokenizer))  # of a vocabulary that may be large, and is rarely needed
    before = [token["content"] for token in added if not token["normalized"]]
    if any(token["normalized"] and compose(token["content"]) != token["content"] for token in added):
        raise ValueError("it has added tokens that are not in the normal form NFC")

    def encode_composed(documents: Sequence[bytes]) -> list[Ids]:
        composed, left = list(documents), list[int]()
        for number, document in enumerate(documents):
            if document.isascii():
                continue
            text = document.decode()
            if CHANGING.search(text) and (result := compose(text)) != text:
                composed[number] = result.encode()
                if any(token in each for token in before for each in (text, result)):
                    left.append(number)
        found = encode(composed)
        for number, ids in zip(left, reference()([documents[each] for each in left]) if left else [], strict=True):
            found[number] = ids
        return found

    return encode_composed


ENGINES: dict[str, Callable[[TokenizerInfo], Encode]] = {
    "gigatoken": gigatoken_engine,
    "tokenizers": tokenizers_engine,
}


def settle_engine(store: Store, corpus: str, wanted: str, tokenizer: TokenizerInfo, samples: Sequence[bytes]) -> str:
    """The engine to use, as `choose_engine` decides; an earlier approval of the wanted engine is reused.

    The store caches the last approval for each corpus: it covers the samples, the tokenizer, the libraries' versions
    and the machine's architecture.
    """
    place = f"cache/engine-{corpus}.json"
    versions = [version(name) for name in ENGINES]
    compared = fingerprint([wanted, versions, platform.machine(), tokenizer.sha256, *map(_digest, samples)])
    if (recall_sealed(store, place, "comparing engines again") or {}).get("approved") == compared:
        return wanted
    engine = choose_engine(wanted, tokenizer, samples)
    if engine == wanted != "tokenizers":
        write_sealed(store, place, {"approved": compared})
    return engine


def _digest(sample: bytes) -> str:
    return hashlib.blake2b(sample, digest_size=16).hexdigest()


def choose_engine(wanted: str, tokenizer: TokenizerInfo, samples: Iterable[bytes]) -> str:
    """The engine to use: the wanted one if its ids equal those of `tokenizers` on every sample, else `tokenizers`."""
    if wanted == "tokenizers":
        return wanted
    documents = list(samples)
    try:
        found = ENGINES[wanted](tokenizer)(documents)
    except Exception as error:  # the reference engine supports every tokenizer
        reason = shortened(str(error).partition("\n\nLocation:")[0])  # gigatoken adds a line of its own source code
        log.warning("engine %s does not support this tokenizer (%s): using the slower `tokenizers`", wanted, reason)
        return "tokenizers"
    expected = tokenizers_engine(tokenizer)(documents)
    for number, (got, reference) in enumerate(zip(found, expected, strict=True)):
        if not np.array_equal(got, reference):
            start = documents[number][:40]
            log.warning(
                "engine %s and `tokenizers` disagree on a sampled document (%r…): using the slower `tokenizers`",
                wanted,
                start,
            )
            return "tokenizers"
    return wanted
