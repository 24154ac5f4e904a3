"""Read published tokenizers, and compute the bytes of text that each token represents, and mask tokens.

Byte lengths of a byte-level tokenizer are exact: those of a text's tokens add up to the text's length. For others they
are estimates, because such tokenizers drop, join or rewrite characters. The true bytes of all held-out text are
recorded together with the estimate, so that estimates can be scaled.
"""

import hashlib
import json
import re
import secrets
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.common.errors import TokenizerError, WrongContent
from trainer.store.manifest import Manifest, digest_file, require_manifest
from trainer.store.storage import Store

KIND = "tokenizer"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer's JSON, its digest, its end-of-document id and its largest id."""

    json: str
    sha256: str
    eos_id: int
    max_id: int

    @property
    def vocab_size(self) -> int:
        """The number of ids from 0 to the largest, added tokens included."""
        return self.max_id + 1


def load_tokenizer(store: Store, key: str) -> TokenizerInfo:
    """Read a published tokenizer; raises `TokenizerError` if it is missing or does not match its manifest."""
    manifest = tokenizer_manifest(store, key)
    sha256 = manifest.digests()[TOKENIZER_FILE]
    try:
        text = _fetch(store, key, TOKENIZER_FILE, sha256).read_text(encoding="utf-8")
    except (FileNotFoundError, WrongContent) as error:
        problem = error if isinstance(error, WrongContent) else f"{store.path(key)}/{TOKENIZER_FILE} is missing"
        raise TokenizerError(f"{problem}; prepare the data again, which repairs it or reports what to do") from error
    try:
        eos_id, max_id = _ids(text, manifest.details["eos_token"])
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(
            f"{store.path(key)} holds a {TOKENIZER_FILE} that is invalid or has another end token ({error!r}); delete "
            "the folder to have it rebuilt"
        ) from error
    return TokenizerInfo(json=text, sha256=sha256, eos_id=eos_id, max_id=max_id)


@lru_cache(maxsize=1)
def _ids(tokenizer_json: str, eos_token: str) -> tuple[int, int]:
    """The id of the end-of-document token, and the largest id."""
    vocab = vocabulary(tokenizer_json)
    return vocab[eos_token], max(vocab.values())


def tokenizer_files(store: Store, key: str) -> list[Path]:
    """A tokenizer's files, for `AutoTokenizer.from_pretrained`; raises `ArtifactError` if one is damaged."""
    return [_fetch(store, key, name, sha256) for name, sha256 in tokenizer_manifest(store, key).digests().items()]


def tokenizer_manifest(store: Store, key: str) -> Manifest:
    """A published tokenizer's manifest; raises `TokenizerError` if it is missing or lists no `tokenizer.json`."""
    manifest = require_manifest(
        store, key, KIND, "holds no published tokenizer; prepare the data first", TokenizerError
    )
    if TOKENIZER_FILE not in manifest.digests():
        raise TokenizerError(
            f"{store.path(key)}/manifest.json lists no {TOKENIZER_FILE}; delete the folder to have it rebuilt"
        )
    return manifest


def keeps_text(tokenizer_json: str) -> bool:
    """Whether a tokenizer normalises only spaces; one that lowercases, for example, reads an easier text."""
    normalizer = json.loads(tokenizer_json).get("normalizer") or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    return all(
        step["type"] == "Prepend" or (step["type"] == "Replace" and step["pattern"] == {"String": " "})
        for step in steps
    )


def vocabulary(tokenizer_json: str) -> dict[str, int]:
    """Every token and its id."""
    vocab: dict[str, int] = Tokenizer.from_str(tokenizer_json).get_vocab(True)
    return vocab


UNWRITTEN = f"\ue000{secrets.token_hex(16)}{{}}\ue001"
"""A spelling that no text contains, because each process draws it at random."""


def text_only(tokenizer_json: str, *also: int) -> dict[str, Any]:
    """A tokenizer.json with which no text becomes a special token, or one of the ids `also`.

    The library's `encode_special_tokens` does less: a copy for another process loses it, and the spelling of a special
    token still becomes that token if it is a Unigram piece, a whole word, or the result of merges. So these tokens get
    random spellings here, and merges that produce or use them are removed.
    """
    description: dict[str, Any] = json.loads(tokenizer_json)
    model, added = description["model"], description.get("added_tokens", [])
    ids = {token["id"] for token in added if token["special"]}.union(also)
    listed = isinstance(model["vocab"], list)  # Unigram: pieces with scores
    vocab = {piece: number for number, (piece, _) in enumerate(model["vocab"])} if listed else model["vocab"]
    hidden = {token: UNWRITTEN.format(token) for token, number in vocab.items() if number in ids}
    model["vocab"] = (
        [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
        if listed
        else {hidden.get(token, token): number for token, number in vocab.items()}
    )
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        pairs = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
        model["merges"] = [
            each for each in pairs if hidden.keys().isdisjoint((*each, each[0] + each[1].removeprefix(prefix)))
        ]
    description["added_tokens"] = [  # the library renumbers added tokens that are missing from the vocabulary
        {**token, "content": UNWRITTEN.format(token["content"]), "special": False, "single_word": False}
        if token["id"] in ids
        else token
        for token in added
    ]
    description["post_processor"] = None
    return description


def text_reader(tokenizer_json: str, *also: int) -> Tokenizer:
    """Build the tokenizer that `text_only` describes."""
    return Tokenizer.from_str(json.dumps(text_only(tokenizer_json, *also)))


def _fetch(store: Store, key: str, name: str, sha256: str) -> Path:
    """Fetch and verify a tokenizer's file; from a remote store, into a file of this process, not the shard cache.

    Raises `WrongContent` if its checksum does not match.
    """
    if store.local is not None:
        return store.fetch(f"{key}/{name}", sha256)
    path = store.fetch(f"{key}/{name}")
    if (found := digest_file(path).sha256) != sha256:
        raise WrongContent(f"{store.path(key)}/{name} does not match its checksum (sha256 {found[:12]}…)")
    return path


DIGEST_BYTES = 16
BYTE_FALLBACK = re.compile(r"<0x[0-9A-F]{2}>")
ENCODING_PARTS = ("normalizer", "pre_tokenizer", "decoder")
SPACE_MARK = "\u2581"
"""The character for a space in SentencePiece tokens."""

Lengths = NDArray[np.int64]


class HeldOutText:
    """Accumulates the bytes of a shard's held-out text, and a digest of its documents.

    The digest does not depend on the tokenizer. It is the sum of the digests of documents, or of parts of large ones,
    so it is the same in any order and for any number of shards.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self.digest = add_digests([])
        self.text_bytes = 0
        self.token_bytes = 0

    def add(self, text: bytes, ids: NDArray[np.uint32]) -> None:
        """Add a document and its token ids, of shape [tokens], without the end-of-document token."""
        self.text_bytes += len(text)
        self.token_bytes += int(self._lengths[ids].sum())
        self.digest = add_digests([self.digest, hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()])


def add_digests(digests: Iterable[str]) -> str:
    """The sum of digests of documents or of groups of them, as a digest of all."""
    return f"{sum(int(each, 16) for each in digests) % 256**DIGEST_BYTES:0{2 * DIGEST_BYTES}x}"


@lru_cache(maxsize=8)
def byte_lengths(tokenizer: str) -> Lengths:
    """The bytes of text that each token id represents, of shape [largest id + 1]; 0 for special and unknown tokens.

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
    """Whether each character of a tokenizer's tokens represents a byte."""
    return "ByteLevel" in {kind for part in ENCODING_PARTS for kind in _types(description.get(part))}


def normalizers_of(description: dict[str, Any]) -> set[str]:
    """The types of a tokenizer's normalizers, such as NFC."""
    return {*_types(description.get("normalizer"))} - {"Sequence"}


def _estimate(token: str, model: dict[str, Any]) -> int:
    if BYTE_FALLBACK.fullmatch(token):
        return 1
    prefix = model.get("continuing_subword_prefix") or ""
    return len(token.removeprefix(prefix).replace(SPACE_MARK, " ").encode())


def _types(part: dict[str, Any] | None) -> Iterator[str]:
    """Yield the types of a part of a tokenizer's description and of its nested parts."""
    if part is not None:
        yield part["type"]
        for each in (*part.get("normalizers", ()), *part.get("pretokenizers", ()), *part.get("decoders", ())):
            yield from _types(each)


PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""Bytes that byte-level tokenizers write as the character with the same number; others are characters from 256 on."""

BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))
}

LENGTHS = ((0xF0, 4), (0xE0, 3), (0xC0, 2), (0x80, 0), (0, 1))
"""The length of a UTF-8 character by the lowest value of its first byte; 0 for continuation bytes."""

UNNAMED = ("Cn", "Co", "Cs")
"""Unicode categories of code points that are not assigned characters."""


def bytes_of(token: str) -> bytes:
    """The bytes that a token of a byte-level tokenizer represents."""
    return bytes(BYTES[character] for character in token)


def continues_word(text: bytes) -> bool:
    """Whether a text begins with a letter, digit or combining mark, or inside a character.

    Each ideograph is a separate word, as in BERT. If a character continues in the next token, the majority of the
    characters that begin with the same bytes decides.
    """
    if not text:
        return False
    length = next(length for least, length in LENGTHS if text[0] >= least)
    begin = text[:length]
    return length == 0 or (_continues(begin.decode(errors="replace")) if len(begin) == length else begin in _begun())


def _continues(character: str) -> bool:
    is_of_word = character.isalnum() or unicodedata.category(character)[0] == "M"
    return is_of_word and "IDEOGRAPH" not in unicodedata.name(character, "")


@cache
def _begun() -> frozenset[bytes]:
    """Incomplete UTF-8 prefixes of which most characters continue a word."""
    votes: Counter[bytes] = Counter()
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        if unicodedata.category(character) not in UNNAMED:
            whole = character.encode()
            votes.update({whole[:end]: 1 if _continues(character) else -1 for end in range(1, len(whole))})
    return frozenset(begin for begin, vote in votes.items() if vote > 0)


USUAL = ("[MASK]", "<mask>")


class MaskTokens(NamedTuple):
    """The mask token's id; for each id, whether it is special and whether it continues a word; the ordinary ids."""

    mask_id: int
    special: NDArray[np.bool_]
    continues: NDArray[np.bool_]
    ordinary: NDArray[np.int64]


@lru_cache(maxsize=8)
def mask_tokens(tokenizer: TokenizerInfo, named: str | None) -> MaskTokens:
    """The mask tokens of a tokenizer: the mask token `named`, or a usual one; raises `TokenizerError` if missing."""
    description: dict[str, Any] = json.loads(tokenizer.json)
    special_ids = {token["id"] for token in description.get("added_tokens", []) if token["special"]}
    vocab = vocabulary(tokenizer.json)
    mask_id = next((vocab[name] for name in ([named] if named else USUAL) if name in vocab), None)
    if mask_id is None or mask_id not in special_ids:
        names = sorted(token for token, number in vocab.items() if number in special_ids)
        found = f"has no special token {named!r}" if named else f"has none of the mask tokens {' and '.join(USUAL)}"
        raise TokenizerError(
            f"a masked model needs a mask token, but the tokenizer {found}; its special tokens are "
            f"{', '.join(names) or 'none'}: set training.masking.mask_token to one of them that has no other use, use "
            "another tokenizer, or train one with data.tokenizer.mask_token"
        )
    special, continues = np.zeros(tokenizer.vocab_size, dtype=np.bool_), np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    special[list(special_ids)] = True
    rule = _rule(description)
    for token, number in vocab.items():
        continues[number] = rule(token)
    known = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    known[list(vocab.values())] = True
    return MaskTokens(mask_id, special, continues & ~special, np.flatnonzero(known & ~special))


def _rule(description: dict[str, Any]) -> Callable[[str], bool]:
    """The function that decides whether a token of this tokenizer continues the word before it."""
    if prefix := description["model"].get("continuing_subword_prefix"):
        return lambda token: token.startswith(prefix)
    as_text = {token["content"] for token in description.get("added_tokens", [])}
    written = bytes_of if is_byte_level(description) else _bytes_written  # a mark for a space is no letter
    return lambda token: continues_word(token.encode() if token in as_text else written(token))


def _bytes_written(token: str) -> bytes:
    """The bytes of a token that is written as text, or of one such as <0xE4>, which stands for a byte."""
    return bytes.fromhex(token[3:5]) if BYTE_FALLBACK.fullmatch(token) else token.encode()
