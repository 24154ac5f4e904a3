"""Evaluation sets that must not be trained on: the hashes of their n-grams of words, as in GPT-3 (Brown et al. 2020, C)."""

import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError, CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import DecontaminateConfig, EvaluationText, TransformConfig
from trainer.config.files import load_job
from trainer.config.finetuning import FinetuneJob
from trainer.corpus.curated import read_curated
from trainer.corpus.decisions import transform_options
from trainer.corpus.pieces import Piece
from trainer.corpus.readers import Document, refuse
from trainer.corpus.shards import batches
from trainer.corpus.sources import find_pieces, named_reading, reading_options
from trainer.curation.arrays import is_intact, write_arrays
from trainer.curation.characters import UNICODE
from trainer.curation.measures import composed
from trainer.curation.overlaps import Overlap
from trainer.curation.task_texts import of_task
from trainer.curation.texts import Texts, said_words, shingles_of
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

FORMAT = 2
BATCH_BYTES, TOGETHER = 2**20, 4096

Found = list[tuple[CorpusConfig, list[Piece]]]


def evaluation_texts(options: DecontaminateConfig) -> list[EvaluationText]:
    """The evaluation sets: those that are named, and those of jobs and tasks. Raises `ConfigError` for data in no file."""
    return [
        *options.files, *(of_job(path) for path in options.jobs), *(text for path in options.tasks for text in of_task(path)),
    ]  # fmt: skip


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


def name_evaluation(options: DecontaminateConfig, transform: TransformConfig | None, found: Found) -> str:
    """The fingerprint of what is kept out: of the evaluation sets' content and how it is read, wherever their files are."""
    texts = [
        [reading_options(corpus), sorted({(piece.sha256, named_reading(piece.path)) for piece in pieces})]
        for corpus, pieces in found
    ]
    return fingerprint([FORMAT, UNICODE, options.ngram, options.least_words, transform_options(transform), texts])


def find_overlap(store: Store, options: DecontaminateConfig, transform: TransformConfig | None, found: Found) -> Overlap:
    """The measure of what documents share with evaluation sets, whose hashes are written unless they are in the store.

    Raises `CorpusError` for an evaluation set in which there is nothing to look for.
    """
    key = f"measures/overlaps/{name_evaluation(options, transform, found)}.npz"
    if not is_intact(store, key):
        hashes: dict[int, list[NDArray[np.uint64]]] = {}
        for corpus, pieces in found:
            before = sum(map(len, hashes.values()))
            for texts in _batches(corpus, pieces, transform):
                for length, some in hashes_of(texts, options).items():
                    hashes.setdefault(length, []).append(some)
            if sum(map(len, hashes.values())) == before:
                raise CorpusError(
                    f"data.curation.decontaminate: no text in {', '.join(corpus.paths)} has {options.least_words} words or "
                    "more, so nothing of it would be kept out; lower least_words, or name the fields that hold its text"
                )
        write_arrays(store, key, {str(length): np.unique(np.concatenate(parts)) for length, parts in sorted(hashes.items())})
    return Overlap(store.url, key)


def hashes_of(texts: Texts, options: DecontaminateConfig) -> dict[int, NDArray[np.uint64]]:
    """The hashes to look for, by the words that they are of: n-grams, and whole texts that are shorter."""
    folded, word_starts = said_words(texts)
    words = np.diff(word_starts)
    hashes, starts = shingles_of(folded, word_starts, options.ngram)
    of = np.repeat(np.where(words < options.least_words, 0, np.minimum(words, options.ngram)), np.diff(starts))
    return {int(length): hashes[of == length] for length in np.unique(of) if length}


def _batches(corpus: CorpusConfig, pieces: Sequence[Piece], transform: TransformConfig | None) -> Iterator[Texts]:
    """The texts of an evaluation set as documents are compared with them."""
    documents = _whole(document for piece in pieces for document in read_curated(piece, corpus, refuse, transform))
    return (composed(Texts([document.text for document in batch])) for batch in batches(documents, BATCH_BYTES, TOGETHER))


def _whole(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents whose parts are put together again."""
    parts: list[bytes] = []
    for document in documents:
        parts.append(document.text)
        if document.ends:
            yield document._replace(text=b"".join(parts))
            parts.clear()


def describe(found: Found) -> list[dict[str, str]]:
    """The files that are kept out, with the field that is read of each, and the digest of its content."""
    read = {(piece.path, corpus.text_field, piece.sha256) for corpus, pieces in found for piece in pieces}
    return [{"path": path, "field": field, "sha256": sha256} for path, field, sha256 in sorted(read)]
