"""What curation decided, as an artifact: for each document of each piece, whether it stays, and if not, why.

    CORPUS.npz       counts      int64, the documents of each piece, in the order of pieces.json
                     reasons     uint8, one a document: 0 if it stays, else a number of the manifest's list of reasons
                     duplicates  int64, the documents, counted from 0 in this corpus, that are duplicates of another
                     originals   int64, those others, counted from 0 over all corpora: the first of exact copies, which may be
                                 a near duplicate of a further one, and of near duplicates the one that stays
                     similarity  float32, the Jaccard similarity of the two sets of n-grams; 1 of exact copies
                     contained   float32, the share of the duplicate's n-grams that the original has; 1 of exact copies
    pieces.json      by corpus, the pieces that were decided about, in their order

A document that is read in parts is decided about part by part.
"""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from trainer.common.errors import ArtifactError, in_one_line
from trainer.config.corpora import CorpusConfig, DataConfig
from trainer.config.curation import TransformConfig
from trainer.corpus.curated import TRANSFORM_FORMAT, Decided, read_curated
from trainer.corpus.pieces import Piece, is_cut_within_documents
from trainer.corpus.readers import Document, OnBad
from trainer.store.manifest import MANIFEST, REPAIR, ArtifactRef, Manifest, read_made, read_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)

KIND = "decisions"
FORMAT = 4
PIECES = "pieces.json"
LISTED = TypeAdapter(dict[str, list[Piece]])


class CorpusDecisions(NamedTuple):
    """What was decided of one corpus; `first` is the number of its first document over all corpora, `place` for messages."""

    place: str
    pieces: list[Piece]
    first: int
    counts: NDArray[np.int64]
    reasons: NDArray[np.uint8]
    duplicates: NDArray[np.int64]
    originals: NDArray[np.int64]
    similarity: NDArray[np.float32]
    contained: NDArray[np.float32]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each piece's documents begin, and where the last's end."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def duplicate(self, number: int) -> int | None:
        """The place of a document among the duplicates; None if it is none."""
        at = int(np.searchsorted(self.duplicates, number))
        return at if at < len(self.duplicates) and self.duplicates[at] == number else None

    def piece_of(self, number: int) -> int:
        """The place among the pieces of the one that holds a document, counted from 0."""
        return int(np.searchsorted(self.starts, number, side="right")) - 1

    def of_pieces(self, pieces: Sequence[Piece], corpus: CorpusConfig) -> dict[Piece, Decided]:
        """What was decided of each piece, of those of which not all stay. Raises `ArtifactError` if they are other pieces."""
        if identities(self.pieces) != identities(pieces):
            raise ArtifactError(
                f"the decisions in {self.place} are of other raw files than those that are there now; start the command again, "
                "which decides anew, and if it says the same, delete them"
            )
        kept, starts = self.reasons == 0, self.starts
        found = {}
        for number, piece in enumerate(pieces):
            own = kept[starts[number] : starts[number + 1]]
            goes_on = not piece.last and is_cut_within_documents(corpus) and self.counts[number + 1] > 0
            if (decided := Decided.of(own, not goes_on or bool(kept[starts[number + 1]]))) is not None:
                found[piece] = decided
        return found


@dataclass(frozen=True)
class Reader:
    """Reads the documents of a corpus's pieces, as curation lets them through."""

    corpus: CorpusConfig
    transform: TransformConfig | None
    decided: Mapping[Piece, Decided]

    def of_piece(self, piece: Piece) -> Decided | None:
        """What was decided of a piece; None if all of it stays."""
        return self.decided.get(piece)

    def read(self, piece: Piece, on_bad: OnBad) -> Iterator[Document]:
        """The documents of a piece. Raises as `read_curated`."""
        return read_curated(piece, self.corpus, on_bad, self.transform, self.of_piece(piece))


def open_reader(store: Store, data: DataConfig, corpus: CorpusConfig, pieces: Sequence[Piece], key: str | None) -> Reader:
    """How a corpus is read, by the decisions of that key; without one all documents stay."""
    transform = data.curation.transform if data.curation else None
    decided = open_decisions(store, key, corpus.name).of_pieces(pieces, corpus) if key is not None else {}
    return Reader(corpus, transform, decided)


def identities(pieces: Sequence[Piece]) -> list[list[Any]]:
    """What decisions know their pieces by."""
    return [[piece.key, piece.index, piece.last, piece.sha256] for piece in pieces]


def transform_options(transform: TransformConfig | None) -> list[Any]:
    """What a shard's bytes depend on besides raw text and decisions; empty if documents are read as they are."""
    return [TRANSFORM_FORMAT, transform.model_dump()] if transform else []


def decisions_behind(made: Manifest) -> list[str]:
    """The key of the decisions that shards were made, or a tokenizer was trained, by, if there are any."""
    decisions = made.inputs.get("decisions")
    return [decisions.key] if decisions else []


def read_decisions(store: Store, key: str) -> Manifest:
    """The manifest of published decisions. Raises `ArtifactError` if there are none."""
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise ArtifactError(f"{store.path(key)} holds no decisions; start the command again, which decides anew")
    return manifest


def corpora_left(store: Store, data: DataConfig, decisions: ArtifactRef | None) -> list[CorpusConfig]:
    """The corpora of which documents stay, all while nothing is decided. Another's are all duplicates of documents of these."""
    if decisions is None or not decisions.content:
        return data.corpora
    table = read_decisions(store, decisions.key).details["table"]
    return [corpus for corpus in data.corpora if table[corpus.name][0]["documents"]]


def decisions_alike(store: Store, key: str, corpus: str) -> list[str]:
    """The key, and those of all decisions of a store that let the same documents of the same text of a corpus through.

    Shards are not built anew where other decisions, as of more evaluation sets, leave their text as it is.
    """
    own, wanted = read_decisions(store, key), open_decisions(store, key, corpus)

    def is_alike(other: str) -> bool:
        try:
            manifest = read_manifest(store, other, KIND)
            if manifest is None or _read_as(manifest, corpus) != _read_as(own, corpus):
                return False
            found = open_decisions(store, other, corpus)
        except ArtifactError as error:
            log.warning("%s: nothing is said of it", error)
            return False
        return identities(found.pieces) == identities(wanted.pieces) and np.array_equal(found.reasons == 0, wanted.reasons == 0)

    others = (f"{KIND}/{name}" for name in store.names(KIND))
    return [key, *(other for other in others if other != key and is_alike(other))]


def _read_as(manifest: Manifest, corpus: str) -> list[Any] | None:
    """How a corpus is read, and how much of it stays; None if it is not decided about."""
    told = manifest.details
    if corpus not in told["table"]:
        return None
    reading = manifest.recipe["data.corpora"].get(corpus)
    return [told["curation"]["transform"], reading, told["table"][corpus][:1]]


def open_decisions(store: Store, key: str, corpus: str) -> CorpusDecisions:
    """What was decided of one corpus. Raises `ArtifactError` if that is missing or damaged, or nothing was decided of it."""
    manifest = read_decisions(store, key)
    firsts: Mapping[str, int] = manifest.details["first_documents"]
    pieces = read_pieces(store, key, manifest)
    if corpus not in firsts or corpus not in pieces:
        raise ArtifactError(f"{store.path(key)} decides about {', '.join(firsts)}, not about {corpus}")
    with np.load(io.BytesIO(_read_file(store, key, manifest, f"{corpus}.npz"))) as arrays:
        found = (arrays[name] for name in CorpusDecisions._fields[3:])
        return CorpusDecisions(store.path(key), pieces[corpus], firsts[corpus], *found)


def read_pieces(store: Store, key: str, manifest: Manifest) -> dict[str, list[Piece]]:
    """The pieces that were decided about, by corpus. Raises `ArtifactError` if their list is missing or damaged."""
    try:
        return LISTED.validate_json(_read_file(store, key, manifest, PIECES))
    except ValidationError as error:
        raise ArtifactError(f"{store.path(key)}/{PIECES} is damaged: {in_one_line(error)}{REPAIR}") from error


def _read_file(store: Store, key: str, manifest: Manifest, name: str) -> bytes:
    record = next((record for record in manifest.files if record.name == name), None)
    if record is None:
        raise ArtifactError(f"{store.path(key)}/{MANIFEST} lists no {name}{REPAIR}")
    return read_made(store, key, record)
