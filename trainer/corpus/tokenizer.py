"""Published tokenizers, as encoding and training read them."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from trainer.common.errors import TokenizerError, WrongContent
from trainer.store.manifest import digest_file, read_manifest
from trainer.store.storage import Store

KIND = "tokenizer"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class TokenizerInfo:
    """What encoding and training need to know: the JSON itself, its digest, its end-of-document id and largest id."""

    json: str
    sha256: str
    eos_id: int
    max_id: int

    @property
    def vocab_size(self) -> int:
        """Ids from 0 to the largest, added tokens included."""
        return self.max_id + 1


def load_tokenizer(store: Store, key: str) -> TokenizerInfo:
    """Read a published tokenizer. Raises `TokenizerError` if there is none, or its file is not what its manifest lists."""
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise TokenizerError(f"{store.path(key)} holds no published tokenizer; prepare the data first")
    sha256 = manifest.digests().get(TOKENIZER_FILE)
    if sha256 is None:
        raise TokenizerError(
            f"{store.path(key)}/manifest.json lists no {TOKENIZER_FILE}; delete the folder to have it made anew"
        )
    try:
        text = _fetch(store, key, TOKENIZER_FILE, sha256).read_text(encoding="utf-8")
    except (FileNotFoundError, WrongContent) as error:
        problem = error if isinstance(error, WrongContent) else f"{store.path(key)}/{TOKENIZER_FILE} is missing"
        raise TokenizerError(f"{problem}; prepare the data again, which repairs it or says what to do") from error
    try:
        vocab = vocabulary(text)
        eos_id = vocab[manifest.details["eos_token"]]
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(
            f"{store.path(key)} holds a {TOKENIZER_FILE} that cannot be used, or names another end token ({error!r}); "
            "delete the folder to have it made anew"
        ) from error
    return TokenizerInfo(json=text, sha256=sha256, eos_id=eos_id, max_id=max(vocab.values()))


def tokenizer_files(store: Store, key: str) -> list[Path]:
    """The files that `AutoTokenizer.from_pretrained` needs beside a model. Raises `ArtifactError` if one is damaged."""
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise TokenizerError(f"{store.path(key)} holds no published tokenizer; prepare the data first")
    return [_fetch(store, key, name, sha256) for name, sha256 in manifest.digests().items()]


def keeps_text(tokenizer_json: str) -> bool:
    """Whether a tokenizer normalises nothing but spaces: what makes small letters of all reads an easier text."""
    normalizer = json.loads(tokenizer_json).get("normalizer")
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer] if normalizer else []
    return all(
        step["type"] == "Prepend" or (step["type"] == "Replace" and step["pattern"] == {"String": " "}) for step in steps
    )


def vocabulary(tokenizer_json: str) -> dict[str, int]:
    """Every token and its id."""
    vocab: dict[str, int] = Tokenizer.from_str(tokenizer_json).get_vocab(True)
    return vocab


def _fetch(store: Store, key: str, name: str, sha256: str) -> Path:
    """A tokenizer's file, verified. Of a remote store it is this process's own: it takes no room that shards need.

    Raises `WrongContent` if it is another one.
    """
    if store.local is not None:
        return store.fetch(f"{key}/{name}", sha256)
    path = store.fetch(f"{key}/{name}")
    if (found := digest_file(path).sha256) != sha256:
        raise WrongContent(f"{store.path(key)}/{name} does not match its checksum (sha256 {found[:12]}…)")
    return path
