"""Evaluation sets that must not be trained on: the hashes of their n-grams of words, as in GPT-3 (Brown et al. 2020, C)."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError, CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import DecontaminateConfig, EvaluationText
from trainer.config.files import load_job
from trainer.config.finetuning import FinetuneJob
from trainer.corpus.pieces import Piece
from trainer.corpus.readers import read_documents
from trainer.corpus.sources import find_pieces
from trainer.curation.arrays import is_intact, write_arrays
from trainer.curation.measures import Overlap
from trainer.curation.texts import Texts, shingles
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

FORMAT = 1
TOGETHER = 4096

Found = list[tuple[CorpusConfig, list[Piece]]]


def evaluation_texts(options: DecontaminateConfig) -> list[EvaluationText]:
    """The evaluation sets: those that are named, and the ones of jobs. Raises `ConfigError` for a job whose data is no file."""
    return [*options.files, *(of_job(path) for path in options.jobs)]


def of_job(path: str) -> EvaluationText:
    """What a fine-tuning job measures its model on: validation and test; all of train if validation is cut from it."""
    data = load_job(FinetuneJob, path).data
    where = f"data.curation.decontaminate.jobs: {path}"
    if data.source in ("hub", "disk"):
        raise ConfigError(f"{where}: its data is of source {data.source}; name files of it in decontaminate.files")
    if data.columns is not None:
        raise ConfigError(f"{where}: its files have no header; name files with one in decontaminate.files")
    paths = [*(data.validation or data.train), *(data.test or [])]
    return EvaluationText(
        paths=paths, format=data.source, fields=data.text_columns, delimiter=data.delimiter, quoting=data.quoting
    )


def find_evaluation(store: Store, options: DecontaminateConfig) -> Found:
    """The files of the evaluation sets, once for each field that holds text. Raises `CorpusError` if some are missing."""
    found: Found = []
    for number, text in enumerate(evaluation_texts(options)):
        for field in text.fields:
            corpus = CorpusConfig(
                name=f"evaluation-{number}", paths=text.paths, format=text.format, text_field=field,
                delimiter=text.delimiter, quoting=text.quoting,
            )  # fmt: skip
            try:
                found.append((corpus, find_pieces(store, corpus, sys.maxsize)))
            except CorpusError as error:
                raise CorpusError(f"data.curation.decontaminate: {error}") from error
    return found


def name_evaluation(options: DecontaminateConfig, found: Found) -> str:
    """The fingerprint of what is kept out: of the evaluation sets' content, wherever their files are."""
    texts = [[corpus.format, corpus.text_field, sorted({piece.sha256 for piece in pieces})] for corpus, pieces in found]
    return fingerprint([FORMAT, options.ngram, options.least_words, texts])


def find_overlap(store: Store, options: DecontaminateConfig, found: Found) -> Overlap:
    """The measure of what documents share with evaluation sets, whose hashes are written unless they are in the store."""
    key = f"measures/overlaps/{name_evaluation(options, found)}.npz"
    if not is_intact(store, key):
        hashes: dict[int, list[NDArray[np.uint64]]] = {}
        for texts in _batches(found):
            for length, some in hashes_of(texts, options).items():
                hashes.setdefault(length, []).append(some)
        write_arrays(store, key, {str(length): np.unique(np.concatenate(parts)) for length, parts in sorted(hashes.items())})
    return Overlap(store.url, key)


def hashes_of(texts: Texts, options: DecontaminateConfig) -> dict[int, NDArray[np.uint64]]:
    """The hashes to look for, by the words that they are of: n-grams, and whole texts that are shorter."""
    hashes, starts = shingles(texts, options.ngram)
    words = np.diff(np.concatenate([[0], np.cumsum(~texts.words.symbol)])[texts.words.starts])
    of = np.repeat(np.minimum(words, options.ngram), np.diff(starts))
    return {int(length): hashes[of == length] for length in np.unique(of) if length >= options.least_words}


def _batches(found: Found) -> Iterator[Texts]:
    batch: list[bytes] = []
    for corpus, pieces in found:
        for piece in pieces:
            for document in read_documents(piece, corpus, on_bad=_refuse):
                batch.append(document.text)
                if len(batch) == TOGETHER:
                    yield Texts(batch)
                    batch = []
    if batch:
        yield Texts(batch)


def _refuse(error: Any) -> None:
    raise error


def describe(options: DecontaminateConfig, found: Found) -> Sequence[str]:
    """The files that are kept out."""
    return sorted({piece.path for _, pieces in found for piece in pieces})
