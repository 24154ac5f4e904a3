"""Tokenizers as artifacts: trained on a sample of the corpora, or taken from a file, a folder or a pretrained name.

A trained tokenizer is named by its options and the corpora's names, not by their bytes: when a raw file changes, the
vocabulary must stay, or every shard would change with it. Its manifest records the files it was trained on; another
`tokenizer.name` trains a new one.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.common.bad_records import BadRecords
from trainer.common.errors import ArtifactError, TokenizerError
from trainer.config.corpora import DataConfig, TokenizerConfig
from trainer.corpus.decisions import Reader
from trainer.corpus.pieces import Piece, blocks_of
from trainer.corpus.raw_bytes import require_same
from trainer.corpus.sources import reading_options
from trainer.corpus.taken_tokenizer import END_OF_TEXT, PLAIN_CLASS, TOKENIZER_CONFIG, find_files, take_tokenizer
from trainer.corpus.tokenizer import KIND, TOKENIZER_FILE, TokenizerInfo, vocabulary
from trainer.records.holds import hold_reused
from trainer.store.manifest import ArtifactRef, digest_file, find_damage, fingerprint, publish_folder, read_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)

FORMAT = 2
SAMPLE_BLOCK, LONGEST_BLOCK = 8192, 2**16
"""About how many bytes of a text the BPE trainer is given at a time, and at most: its memory grows with the longest."""

Texts = Sequence[tuple[Reader, Sequence[Piece]]]
"""The pieces of each corpus, and how they are read."""


def find_tokenizer(store: Store, data: DataConfig) -> ArtifactRef | None:
    """The published, intact tokenizer that this configuration names, or None."""
    name, key = name_tokenizer(data)
    try:
        manifest = read_manifest(store, key, KIND)
    except ArtifactError as error:
        log.warning("%s: it is to be put back or made anew", error)
        return None
    if manifest is None:
        return None
    for file, problem in (damage := find_damage(store, key, manifest)).items():
        log.warning("%s/%s %s: it is to be put back or made anew", store.path(key), file, problem)
    if damage or not hold_reused(store, key):
        return None
    return ArtifactRef(key=key, fingerprint=name, size=manifest.size(), reused=True)


def make_tokenizer(
    store: Store,
    data: DataConfig,
    texts: Texts,
    advance: Callable[[int], None] = lambda size: None,
    require: Callable[[str], None] = lambda sha256: None,
) -> ArtifactRef:
    """Train or take the tokenizer and publish it.

    Raises `TokenizerError` if it cannot be loaded or names no end token, and what `require`, called with the digest of its
    tokenizer.json before it is published, raises.
    """
    name, key = name_tokenizer(data)
    with store.staging(key=key) as folder:
        if data.tokenizer.path is not None:
            details = _take(data.tokenizer, folder)
        else:
            details = _train(data.tokenizer, texts, folder, advance)
        require(digest_file(folder / TOKENIZER_FILE).sha256)
        details["recipe"] = tokenizer_recipe(data)
        if decided := {reader.decisions for reader, _ in texts if reader.decisions}:
            details["decisions"] = sorted(decided)
        manifest = publish_folder(store, folder, key, KIND, name, details)
    return ArtifactRef(key=key, fingerprint=name, size=manifest.size())


def preview_tokenizer(data: DataConfig) -> TokenizerInfo:
    """The tokenizer before it is published: as it is if it is taken, else a stand-in of the size to be trained.

    Raises `TokenizerError` if it cannot be loaded.
    """
    if data.tokenizer.vocab_size is not None:
        return TokenizerInfo(json="", sha256="", eos_id=0, max_id=data.tokenizer.vocab_size - 1)
    with TemporaryDirectory(prefix="headrace-") as folder:
        eos = _take(data.tokenizer, Path(folder))["eos_token"]
        text = Path(folder, TOKENIZER_FILE).read_text(encoding="utf-8")
    vocab = vocabulary(text)
    return TokenizerInfo(json=text, sha256="", eos_id=vocab[eos], max_id=max(vocab.values()))


def name_tokenizer(data: DataConfig) -> tuple[str, str]:
    """The fingerprint and the key of the tokenizer that this configuration names."""
    name = fingerprint(tokenizer_recipe(data))
    return name, f"tokenizers/{data.tokenizer.name if data.tokenizer.path is None else 'taken'}-{name}"


def tokenizer_recipe(data: DataConfig) -> dict[str, Any]:
    """All that the fingerprint is of."""
    options: dict[str, Any] = {"format": FORMAT, **data.tokenizer.recorded()}
    del options["engine"]
    if data.tokenizer.path is None:
        return {**options, "corpora": [{"name": corpus.name, **reading_options(corpus)} for corpus in data.corpora]}
    content = {name: digest_file(file).sha256 for name, file in find_files(data.tokenizer.path).items()}
    return {**options, "content": content, "path": None}


def _train(options: TokenizerConfig, texts: Texts, folder: Path, advance: Callable[[int], None]) -> dict[str, Any]:
    assert options.vocab_size is not None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        special_tokens=[END_OF_TEXT, *([options.mask_token] if options.mask_token else [])],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    used: list[str] = []
    tokenizer.train_from_iterator(_sample(texts, options.sample_bytes, used, advance), trainer)
    if (size := tokenizer.get_vocab_size()) < options.vocab_size:
        raise TokenizerError(
            f"data.tokenizer.vocab_size is {options.vocab_size:,}, but the text gives no more than {size:,} tokens; set it to "
            f"{size} or less, give more text, or raise data.tokenizer.sample_bytes ({options.sample_bytes:,} bytes)"
        )
    return save_trained(options, tokenizer, sorted(used), folder)


def save_trained(options: TokenizerConfig, tokenizer: Tokenizer, trained_on: list[str] | None, folder: Path) -> dict[str, Any]:
    """Write a trained tokenizer's files; returns its manifest's details. `trained_on` is None where it is not known."""
    _save(tokenizer, END_OF_TEXT, options.mask_token, folder)
    return {
        "eos_token": END_OF_TEXT,
        "trained_on": trained_on,
        "vocab_size": tokenizer.get_vocab_size(),
        "options": options.recorded(),
    }


def _sample(texts: Texts, sample_bytes: int, used: list[str], advance: Callable[[int], None]) -> Iterator[str]:
    """Documents from all over the corpora, each corpus giving its share of `sample_bytes`; of pieces as they were looked at."""
    total = sum(piece.size for _, pieces in texts for piece in pieces)
    for reader, pieces in texts:
        share = sample_bytes * sum(piece.size for piece in pieces) // max(total, 1) + 1
        taken, bad = 0, BadRecords(reader.corpus.max_bad_records)
        for piece in spread(pieces):
            if taken >= share:
                break
            used.append(f"{reader.corpus.name}/{piece.key}#{piece.index}")
            for document in reader.read(piece, bad.add):
                for block in blocks_of(document.text, SAMPLE_BLOCK):
                    yield from _short_blocks(block)
                taken += len(document.text)
                advance(len(document.text))
                if taken >= share:
                    require_same(piece, reader.corpus)
                    break


def _short_blocks(block: bytes) -> Iterator[str]:
    """A block without line ends in shorter ones: cut before a space, where the trainer cuts too, or within a word as long."""
    start = 0
    while len(block) - start > LONGEST_BLOCK:
        end = block.rfind(b" ", start + 1, start + LONGEST_BLOCK)
        if end < 0:
            end = start + LONGEST_BLOCK
            while block[end] & 0xC0 == 0x80:  # within a character
                end -= 1
        yield block[start:end].decode()
        start = end
    yield block[start:].decode()


def spread(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces in an order that visits the whole list at ever finer steps, so that a sample is not only its beginning."""
    return sorted(pieces, key=lambda piece: fingerprint([piece.key, piece.index]))


def _take(options: TokenizerConfig, folder: Path) -> dict[str, Any]:
    assert options.path is not None
    eos = take_tokenizer(options.path, options.eos_token, folder)
    vocab = vocabulary((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    return {"eos_token": eos, "taken_from": options.path, "vocab_size": len(vocab)}


def _save(tokenizer: Tokenizer, eos: str, mask: str | None, folder: Path) -> None:
    """Write the files that `AutoTokenizer.from_pretrained` reads.

    The end token begins texts and pads as well. There is no unknown token, as there are no unknown bytes: else a token that is
    misspelt would have an id.
    """
    tokenizer.save(str(folder / TOKENIZER_FILE))
    config = {"tokenizer_class": PLAIN_CLASS, "eos_token": eos, "bos_token": eos, "pad_token": eos}
    config |= {"mask_token": mask} if mask else {}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
