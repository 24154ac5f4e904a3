"""Tokenizers as artifacts: trained on a sample of the corpora, or copied from a file, a folder or a pretrained name.

The identity of a trained tokenizer covers its options and the corpora's names, not their bytes: if raw files change,
the vocabulary must stay the same, or every shard would change. Its manifest records the files that it was trained on;
another `tokenizer.name` trains a new one.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.common.bad_records import BadRecords
from trainer.common.errors import ArtifactError, TokenizerError
from trainer.common.progress import Progress
from trainer.common.temporary import temporary_folder
from trainer.config.corpora import DataConfig, TokenizerConfig
from trainer.config.jobs import PrepareJob
from trainer.data.decisions import Reader, open_reader
from trainer.data.pieces import Piece, blocks_of, require_same
from trainer.data.sources import files_of, find_pieces, forgetting_changed, look_at_text, reading_options
from trainer.models.taken_tokenizer import (
    END_OF_TEXT,
    PLAIN_CLASS,
    TOKENIZER_CONFIG,
    find_files,
    origin_of,
    take_tokenizer,
)
from trainer.models.tokenizer import KIND, TOKENIZER_FILE, TokenizerInfo, vocabulary
from trainer.records.run_names import made_at
from trainer.records.steps import Explains, Step, publish
from trainer.store.manifest import (
    ArtifactRef,
    Input,
    Manifest,
    content_of,
    digest_file,
    digest_folder,
    fingerprint,
    read_manifest,
)
from trainer.store.names import CHECKPOINT_KIND, CHECKPOINTS, FINAL, FINAL_KIND
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 3
SAMPLE_BLOCK, LONGEST_BLOCK = 8192, 2**16
"""The usual and the greatest size in bytes of a text for the BPE trainer: its memory grows with the longest text."""

Texts = Sequence[tuple[Reader, Sequence[Piece]]]
"""The pieces of each corpus, and their reader."""


def make_tokenizer(store: Store, job: PrepareJob, progress: Progress, decisions: ArtifactRef | None = None) -> Step:
    """The step that trains the tokenizer on a sample of the kept documents, or copies it.

    It raises `TokenizerError` if the tokenizer cannot be loaded or has no end token, `CorpusError` for unusable text,
    `ArtifactError` if it is damaged, other artifacts depend on it, and retraining gives a different one.
    """
    data = job.data

    def build(step: Step) -> Manifest:
        with store.staging(key=step.key) as folder:
            if data.tokenizer.path is not None:
                return publish(step, folder, _take(store, data.tokenizer, folder), notes=_notes(folder))
            if details := _put_back(step, data.tokenizer, folder):
                # The decisions that it was trained with are unknown.
                step = replace(step, inputs={}, recorded_only=frozenset())
            else:
                details = train(folder)
            return publish(step, folder, details, notes=_notes(folder))

    def train(folder: Path) -> dict[str, Any]:
        with progress.bar("tokenizer", None, "B") as bar, forgetting_changed(store):
            pieces = [(corpus, find_pieces(store, corpus, data.shards.piece_bytes)) for corpus in data.corpora]
            for corpus, each in pieces:
                look_at_text(corpus, files_of(each))
            key = decisions.key if decisions else None
            texts = [(open_reader(store, data, corpus, each, key), each) for corpus, each in pieces]
            return _train(data.tokenizer, texts, folder, bar.advance)

    inputs = {"decisions": decisions.as_input()} if decisions and data.tokenizer.path is None else {}
    if (path := data.tokenizer.path) and (origin := made_at(store, origin_of(store, path))):
        inputs["taken from"] = Input(key=origin, content="")
    name = data.tokenizer.name if data.tokenizer.path is None else "taken"
    return Step(
        store, KIND, "tokenizers", name, tokenizer_recipe(store, data), build,
        inputs=inputs, recorded_only=frozenset(inputs), fixes_content=False,
        explains=Explains(remarks=partial(_trained_on_all, data)),
        remedy="choose another data.tokenizer.name to train a new one",
    )  # fmt: skip


def _trained_on_all(data: DataConfig, tokenizer: Manifest) -> list[str]:
    """A remark if a tokenizer is older than the curation of its text."""
    if data.curation is None or data.tokenizer.path is not None or "decisions" in tokenizer.inputs:
        return []
    return ["it was trained on all documents, before curation; another data.tokenizer.name trains one on the kept ones"]


def _put_back(step: Step, options: TokenizerConfig, folder: Path) -> dict[str, Any] | None:
    """Restore the files of a damaged tokenizer that other artifacts depend on, from its own copy or that of a run.

    Returns None, with nothing written, if nothing depends on it, or if there is no intact copy.
    """
    if (wanted := step.expected) is None:
        if step.store.names(step.key):
            log.warning("%s is damaged; nothing depends on it, so it is rebuilt", step.store.path(step.key))
        return None
    for place, content in _copies(step):
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception:  # the library raises bare exceptions for invalid files
            continue
        details = save_trained(options, tokenizer, None, folder)
        (folder / TOKENIZER_FILE).write_bytes(content)
        if content_of(digest_folder(folder), _notes(folder)) == wanted.content:
            log.warning("%s was restored from %s", step.store.path(step.key), place)
            return details
    for path in folder.iterdir():
        path.unlink()
    return None


def _notes(folder: Path) -> list[str]:
    """The files beside tokenizer.json, on which nothing else depends."""
    return [path.name for path in folder.iterdir() if path.name != TOKENIZER_FILE]


def _copies(step: Step) -> Iterator[tuple[str, bytes]]:
    """The locations and bytes of possible copies of the tokenizer: its own folder, then final models and checkpoints,
    each distinct content once.
    """
    store, seen = step.store, set[str]()
    with suppress(FileNotFoundError):
        yield store.path(step.key), store.read_bytes(f"{step.key}/{TOKENIZER_FILE}")
    for run in (f"runs/{name}" for name in store.names("runs")):
        places = {f"{run}/{FINAL}": FINAL_KIND}
        places |= {f"{run}/{CHECKPOINTS}/{name}": CHECKPOINT_KIND for name in store.names(f"{run}/{CHECKPOINTS}")}
        for place, kind in places.items():
            with suppress(ArtifactError, FileNotFoundError):
                manifest = read_manifest(store, place, kind)
                sha256 = manifest.digests().get(TOKENIZER_FILE) if manifest else None
                if sha256 is not None and sha256 not in seen:
                    yield store.path(place), store.fetch(f"{place}/{TOKENIZER_FILE}", sha256, recheck=True).read_bytes()
                    seen.add(sha256)


def preview_tokenizer(store: Store, data: DataConfig) -> TokenizerInfo:
    """The tokenizer before it is published: a copied one as it is, else a placeholder of the size to be trained.

    Raises `TokenizerError` if it cannot be loaded.
    """
    if data.tokenizer.vocab_size is not None:
        return TokenizerInfo(json="", sha256="", eos_id=0, max_id=data.tokenizer.vocab_size - 1)
    with temporary_folder() as folder:
        eos = _take(store, data.tokenizer, Path(folder))["eos_token"]
        text = Path(folder, TOKENIZER_FILE).read_text(encoding="utf-8")
    vocab = vocabulary(text)
    return TokenizerInfo(json=text, sha256="", eos_id=vocab[eos], max_id=max(vocab.values()))


def tokenizer_recipe(store: Store, data: DataConfig) -> dict[str, Any]:
    """The identity of a tokenizer: its options, with the corpora's names, or with the contents of the copied files."""
    options = data.tokenizer.model_dump(exclude={"engine"})
    if data.tokenizer.path is None:
        read = [{"name": corpus.name, **reading_options(corpus)} for corpus in data.corpora]
        return {"format": FORMAT, "data.tokenizer": options, "data.corpora": read}
    content = {name: digest_file(file).sha256 for name, file in find_files(data.tokenizer.path, store).items()}
    return {"format": FORMAT, "data.tokenizer": {**options, "content": content, "path": None}}


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
    used, cut = list[str](), set[str]()
    tokenizer.train_from_iterator(_sample(texts, options.sample_bytes, used, cut, advance), trainer)
    if (size := tokenizer.get_vocab_size()) < options.vocab_size:
        more = f"increase data.tokenizer.sample_bytes ({options.sample_bytes:,} bytes)" if cut else "add text"
        raise TokenizerError(
            f"data.tokenizer.vocab_size is {options.vocab_size:,}, but the text gives only {size:,} tokens; set it to "
            f"{size} or less, or {more}"
        )
    return save_trained(options, tokenizer, sorted(used), folder)


def save_trained(
    options: TokenizerConfig, tokenizer: Tokenizer, trained_on: list[str] | None, folder: Path
) -> dict[str, Any]:
    """Write a trained tokenizer's files for `AutoTokenizer.from_pretrained`; returns its manifest's details.

    The end token is also the token for beginnings and padding. There is no unknown token, as there are no unknown
    bytes; with one, a misspelt token would get an id. `trained_on` is None if it is unknown.
    """
    tokenizer.save(str(folder / TOKENIZER_FILE))
    config = {"tokenizer_class": PLAIN_CLASS, **dict.fromkeys(("eos_token", "bos_token", "pad_token"), END_OF_TEXT)}
    config |= {"mask_token": options.mask_token} if options.mask_token else {}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return {
        "eos_token": END_OF_TEXT,
        "trained_on": trained_on,
        "vocab_size": tokenizer.get_vocab_size(),
        "options": options.model_dump(),
    }


def _sample(
    texts: Texts, sample_bytes: int, used: list[str], cut: set[str], advance: Callable[[int], None]
) -> Iterator[str]:
    """Documents from all over the corpora, each corpus giving its share of `sample_bytes`; checks digests. Adds the
    pieces that it reads to `used`, and the corpora of which it leaves text out to `cut`.
    """
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
                    cut.add(reader.corpus.name)
                    require_same(piece, reader.corpus)
                    break


def _short_blocks(block: bytes) -> Iterator[str]:
    """A block without line ends in shorter ones: cut before a space, where the trainer splits too, or within an
    overlong word.
    """
    start = 0
    while len(block) - start > LONGEST_BLOCK:
        end = block.rfind(b" ", start + 1, start + LONGEST_BLOCK)
        if end < 0:
            end = start + LONGEST_BLOCK
            while block[end] & 0xC0 == 0x80:  # not within a character
                end -= 1
        yield block[start:end].decode()
        start = end
    yield block[start:].decode()


def spread(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces in a pseudorandom order, so that the beginning of the list is a sample of all pieces."""
    return sorted(pieces, key=lambda piece: fingerprint([piece.key, piece.index]))


def _take(store: Store, options: TokenizerConfig, folder: Path) -> dict[str, Any]:
    assert options.path is not None
    eos = take_tokenizer(options.path, options.eos_token, folder, store)
    vocab = vocabulary((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    return {"eos_token": eos, "taken_from": options.path, "vocab_size": len(vocab)}
