"""Tokenizers as artifacts: trained on a sample of the corpora, or taken from a file, a folder or a pretrained name.

A trained tokenizer is named by its options and the corpora's names, not by their bytes: when a raw file changes, the
vocabulary must stay, or every shard would change with it. Its manifest records the files it was trained on; another
`tokenizer.name` trains a new one.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.config import CorpusConfig, DataConfig, TokenizerConfig
from trainer.errors import ArtifactError, RecordError, TokenizerError
from trainer.holds import hold_reused
from trainer.manifest import (
    ArtifactRef,
    digest_file,
    find_damage,
    fingerprint,
    publish_folder,
    read_manifest,
)
from trainer.readers import read_documents
from trainer.sources import Piece, blocks_of
from trainer.storage import Store

log = logging.getLogger(__name__)

END_OF_TEXT = "<|endoftext|>"
KIND = "tokenizer"
SAMPLE_BLOCK = 8192
"""Bytes a text that the BPE trainer is given at a time: its memory grows with the longest."""

TOKENIZER_FILE, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"

CorpusPieces = Sequence[tuple[CorpusConfig, Sequence[Piece]]]


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


def find_tokenizer(store: Store, data: DataConfig) -> ArtifactRef | None:
    """The published, intact tokenizer that this configuration names, or None."""
    name, key = name_tokenizer(data)
    try:
        manifest = read_manifest(store, key, KIND)
    except ArtifactError as error:
        log.warning("%s: it is to be made anew", error)
        return None
    if manifest is None or find_damage(store, key, manifest) or not hold_reused(store, key, manifest.created):
        return None
    return ArtifactRef(key=key, fingerprint=name, size=manifest.size(), reused=True)


def make_tokenizer(
    store: Store, data: DataConfig, pieces: CorpusPieces, advance: Callable[[int], None] = lambda size: None
) -> ArtifactRef:
    """Train or take the tokenizer and publish it. Raises `TokenizerError` if it cannot be loaded or names no end token."""
    name, key = name_tokenizer(data)
    with store.staging() as folder:
        if data.tokenizer.path is not None:
            details = _take(data.tokenizer, folder)
        else:
            details = _train(data.tokenizer, pieces, folder, advance)
        details["recipe"] = tokenizer_recipe(data)
        manifest = publish_folder(store, folder, key, KIND, name, details)
    return ArtifactRef(key=key, fingerprint=name, size=manifest.size())


def load_tokenizer(store: Store, key: str) -> TokenizerInfo:
    """Read a published tokenizer."""
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise TokenizerError(f"{store.path(key)} holds no published tokenizer; prepare the data first")
    path = store.fetch(f"{key}/{TOKENIZER_FILE}")
    text = path.read_text(encoding="utf-8")
    vocab = vocabulary(text)
    eos_id = vocab[manifest.details["eos_token"]]
    return TokenizerInfo(json=text, sha256=digest_file(path).sha256, eos_id=eos_id, max_id=max(vocab.values()))


def preview_tokenizer(data: DataConfig) -> TokenizerInfo:
    """The tokenizer before it is published: as it is if it is taken, else a stand-in of the size to be trained.

    Raises `TokenizerError` if it cannot be loaded.
    """
    if data.tokenizer.vocab_size is not None:
        return TokenizerInfo(json="", sha256="", eos_id=0, max_id=data.tokenizer.vocab_size - 1)
    tokenizer, eos = _load(data.tokenizer)
    text, vocab = tokenizer.to_str(), tokenizer.get_vocab(True)
    return TokenizerInfo(json=text, sha256="", eos_id=vocab[eos], max_id=max(vocab.values()))


def tokenizer_files(store: Store, key: str) -> list[Path]:
    """The files that `AutoTokenizer.from_pretrained` needs beside a model."""
    return [store.fetch(f"{key}/{name}") for name in (TOKENIZER_FILE, TOKENIZER_CONFIG)]


def vocabulary(tokenizer_json: str) -> dict[str, int]:
    """Every token and its id."""
    vocab: dict[str, int] = Tokenizer.from_str(tokenizer_json).get_vocab(True)
    return vocab


def name_tokenizer(data: DataConfig) -> tuple[str, str]:
    """The fingerprint and the key of the tokenizer that this configuration names."""
    name = fingerprint(tokenizer_recipe(data))
    return name, f"tokenizers/{data.tokenizer.name if data.tokenizer.path is None else 'taken'}-{name}"


def tokenizer_recipe(data: DataConfig) -> dict[str, Any]:
    """All that the fingerprint is of."""
    options: dict[str, Any] = data.tokenizer.model_dump(exclude={"engine"})
    if data.tokenizer.path is None:
        return {**options, "corpora": [corpus.model_dump(exclude={"paths", "max_bad_records"}) for corpus in data.corpora]}
    path = _tokenizer_file(data.tokenizer.path)
    beside = [path, path.with_name(TOKENIZER_CONFIG)] if path else []
    content = [digest_file(file).sha256 for file in beside if file.is_file()]
    return {**options, "content": content, "path": None if path else data.tokenizer.path}


def _tokenizer_file(path: str) -> Path | None:
    """The tokenizer.json that a local path means, or None for a pretrained name."""
    for candidate in (Path(path), Path(path, TOKENIZER_FILE)):
        if candidate.is_file():
            return candidate
    return None


def _train(options: TokenizerConfig, corpora: CorpusPieces, folder: Path, advance: Callable[[int], None]) -> dict[str, Any]:
    assert options.vocab_size is not None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    used: list[str] = []
    tokenizer.train_from_iterator(_sample(corpora, options.sample_bytes, used, advance), trainer)
    _save(tokenizer, END_OF_TEXT, folder)
    return {
        "eos_token": END_OF_TEXT,
        "trained_on": sorted(used),
        "vocab_size": tokenizer.get_vocab_size(),
        "options": options.model_dump(),
    }


def _sample(corpora: CorpusPieces, sample_bytes: int, used: list[str], advance: Callable[[int], None]) -> Iterator[str]:
    """Documents from all over the corpora, each corpus giving its share of `sample_bytes`."""
    total = sum(piece.size for _, pieces in corpora for piece in pieces)
    for corpus, pieces in corpora:
        share = sample_bytes * sum(piece.size for piece in pieces) // max(total, 1) + 1
        taken = 0
        for piece in spread(pieces):
            if taken >= share:
                break
            used.append(f"{corpus.name}/{piece.key}#{piece.index}")
            for document in read_documents(piece, corpus, on_bad=ignore):
                for block in blocks_of(document.text, SAMPLE_BLOCK):
                    yield block.decode()
                taken += len(document.text)
                advance(len(document.text))
                if taken >= share:
                    break


def spread(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces in an order that visits the whole list at ever finer steps, so that a sample is not only its beginning."""
    return sorted(pieces, key=lambda piece: fingerprint([piece.key, piece.index]))


def ignore(error: RecordError) -> None:
    """Pass over a bad record: the tokenization proper reports it."""


def _take(options: TokenizerConfig, folder: Path) -> dict[str, Any]:
    tokenizer, eos = _load(options)
    _save(tokenizer, eos, folder)
    return {"eos_token": eos, "taken_from": options.path, "vocab_size": tokenizer.get_vocab_size()}


def _load(options: TokenizerConfig) -> tuple[Tokenizer, str]:
    """The tokenizer to take, and its end-of-document token."""
    assert options.path is not None
    path = _tokenizer_file(options.path)
    try:
        if path is not None:
            tokenizer, named = Tokenizer.from_file(str(path)), _named_eos(path.parent)
        else:
            from transformers import AutoTokenizer

            loaded = AutoTokenizer.from_pretrained(options.path)
            tokenizer, named = Tokenizer.from_str(loaded.backend_tokenizer.to_str()), loaded.eos_token
    except Exception as error:  # the libraries raise bare Exceptions for every kind of bad file
        raise TokenizerError(f"tokenizer {options.path!r} cannot be loaded: {error}") from error
    eos = options.eos_token or named or (END_OF_TEXT if tokenizer.token_to_id(END_OF_TEXT) is not None else None)
    if eos is None or tokenizer.token_to_id(eos) is None:
        found = "names no end-of-document token" if eos is None else f"has no token {eos!r}"
        raise TokenizerError(f"tokenizer {options.path!r} {found}; set data.tokenizer.eos_token to one of its tokens")
    return tokenizer, eos


def _named_eos(folder: Path) -> str | None:
    """The end token that a tokenizer_config.json beside the tokenizer names, if any."""
    path = folder / TOKENIZER_CONFIG
    if not path.is_file():
        return None
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    named: str | None = eos["content"] if isinstance(eos, dict) else eos
    return named


def _save(tokenizer: Tokenizer, eos: str, folder: Path) -> None:
    """Write the files that `AutoTokenizer.from_pretrained` reads."""
    tokenizer.save(str(folder / TOKENIZER_FILE))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "bos_token": eos, "unk_token": eos}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
