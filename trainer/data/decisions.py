"""Curation decisions as an artifact, and reading the documents that they keep.

The decisions on a piece are one bit for each of its documents, in reading order.

    CORPUS.npz       counts      int64, the documents of each piece, in the order of pieces.json
                     reasons     uint8, one per document: 0 if it is kept, else a number of the manifest's reasons
                     duplicates  int64, the documents, counted from 0 in this corpus, that are duplicates of another
                     originals   int64, their originals, counted from 0 over all corpora: of exact copies the first,
                                 which may itself be a near duplicate, and of near duplicates the kept one
                     similarity  float32, the Jaccard similarity of the two sets of n-grams; 1 for exact copies
                     contained   float32, the share of the duplicate's n-grams that the original has; 1 for exact copies
    pieces.json      by corpus, the pieces with decisions, in order

If a document is read in parts, each part has its own decision.
"""

import io
import ipaddress
import logging
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from trainer.common.errors import ArtifactError, in_one_line
from trainer.config.corpora import CorpusConfig, DataConfig
from trainer.config.curation import TransformConfig
from trainer.data.pieces import Piece, is_cut_within_documents
from trainer.data.readers import Columns, Document, OnBad, read_documents
from trainer.store.artifact_files import REPAIR, read_made
from trainer.store.manifest import MANIFEST, ArtifactRef, Manifest, read_manifest, require_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


TRANSFORM_FORMAT = 3
"""Increase it when a transformation gives other text, so that artifacts of the old text are not reused."""

UNICODE = unicodedata.unidata_version
"""Part of the identity of transformed text and of measures: another version of Python may know more letters and marks,
so normal forms, words and the ends of addresses may differ.
"""

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
"""The lookbehind allows matches only at the beginning of a run: otherwise every character would be tried as a start."""

NUMBER = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IP4 = re.compile(rf"(?<![\w.])(?:{NUMBER}\.){{3}}{NUMBER}(?![\w]|\.\d)")
IP6 = re.compile(r"(?<![\w:.])(?P<label>[A-Za-z_]\w{0,31}:)?(?P<number>[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,35})(?![\w:])")
"""An IPv6 address, optionally after a label, as in `ip:2001:db8::1`."""


def mask_email(text: str) -> str:
    return EMAIL.sub("<email>", text)


def mask_ip(text: str) -> str:
    return IP6.sub(_mask_ip6, IP4.sub("<ip>", text))


def _mask_ip6(found: re.Match[str]) -> str:
    """The replacement of an IPv6 address; an ambiguous match, such as a slice or a C++ name like 1::2, is kept."""
    colon = ":" if found[0].endswith(":") and not found[0].endswith("::") else ""  # punctuation after the address
    whole, number = found[0].removesuffix(colon), found["number"].removesuffix(colon)
    if _is_ip6(whole):  # the label is the first group of the address
        return f"<ip>{colon}"
    return f"{found['label'] or ''}<ip>{colon}" if _is_ip6(number) else found[0]


def _is_ip6(number: str) -> bool:
    groups = [group for group in number.split(":") if group]
    try:
        ipaddress.IPv6Address(number)
    except ValueError:
        return False
    return len(groups) > 2 or len(groups[0]) == 4


MASKS = {"email": mask_email, "ip": mask_ip}


@dataclass(frozen=True)
class PieceMask:
    """The decisions on a piece: the number of its documents, and a packed bit for each that is kept.

    `goes_on`: whether the first part of the file's next piece is kept. A document cut between the pieces needs it: the
    last kept part is marked as the document's end.
    """

    documents: int
    kept: bytes
    goes_on: bool

    @classmethod
    def of(cls, kept: NDArray[np.bool_], goes_on: bool) -> "PieceMask | None":
        """None if all documents and the following part are kept: then the piece is read unchanged."""
        if goes_on and kept.all():
            return None
        return cls(len(kept), np.packbits(kept).tobytes(), goes_on)

    def bits(self) -> NDArray[np.bool_]:
        return np.unpackbits(np.frombuffer(self.kept, np.uint8), count=self.documents).astype(bool)


def read_curated(
    piece: Piece,
    corpus: CorpusConfig,
    on_bad: OnBad,
    transform: TransformConfig | None,
    decided: PieceMask | None = None,
    columns: Columns = (),
) -> Iterator[Document]:
    """The kept documents of a piece.

    Raises as `read_documents`, and `ArtifactError` if the decisions are on another piece.
    """
    documents = read_documents(piece, corpus, on_bad, columns)
    if transform is not None:
        documents = map(partial(transformed, transform), documents)
    return documents if decided is None else _kept(documents, piece, decided)


def transformed(transform: TransformConfig, document: Document) -> Document:
    """A document after transformation of its raw text."""
    text = document.text.decode()
    if transform.unicode:
        text = unicodedata.normalize(transform.unicode, text)
    for name in transform.mask:
        text = MASKS[name](text)
    return document._replace(text=text.encode())


def _kept(documents: Iterator[Document], piece: Piece, decided: PieceMask) -> Iterator[Document]:
    bits = decided.bits()
    number = -1
    for number, document in enumerate(documents):
        if number >= len(bits):
            break
        if bits[number]:
            followed = bits[number + 1] if number + 1 < len(bits) else decided.goes_on
            yield document if followed else document._replace(ends=True)
    if number + 1 != len(bits):
        found = "more" if number >= len(bits) else str(number + 1)
        raise ArtifactError(
            f"{piece.path}: piece {piece.index} has {found} documents, but the decisions cover {len(bits)}: they were "
            "made for other raw text; start the command again to curate the text again"
        )


KIND = "decisions"
FORMAT = 5
PIECES = "pieces.json"
LISTED = TypeAdapter(dict[str, list[Piece]])


class CorpusDecisions(NamedTuple):
    """The decisions on a corpus; `first` is its first document's number over all corpora, `place` is for messages."""

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
        """The start of each piece's documents, and the end of the last's; shape [pieces + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def duplicate(self, number: int) -> int | None:
        """The index of a document among the duplicates; None if it is not one."""
        at = int(np.searchsorted(self.duplicates, number))
        return at if at < len(self.duplicates) and self.duplicates[at] == number else None

    def piece_of(self, number: int) -> int:
        """The index of the piece that holds a document."""
        return int(np.searchsorted(self.starts, number, side="right")) - 1

    def of_pieces(self, pieces: Sequence[Piece], corpus: CorpusConfig) -> dict[Piece, PieceMask]:
        """The decisions on each piece that is not kept completely. Raises `ArtifactError` if the pieces differ."""
        if identities(self.pieces) != identities(pieces):
            raise ArtifactError(
                f"the decisions in {self.place} were made for other raw files than the present ones; start the command "
                "again to curate the text again; if this error repeats, delete the decisions"
            )
        kept, starts = self.reasons == 0, self.starts
        found = {}
        for number, piece in enumerate(pieces):
            own = kept[starts[number] : starts[number + 1]]
            goes_on = not piece.last and is_cut_within_documents(corpus) and self.counts[number + 1] > 0
            if (decided := PieceMask.of(own, not goes_on or bool(kept[starts[number + 1]]))) is not None:
                found[piece] = decided
        return found


@dataclass(frozen=True)
class Reader:
    """Reads the documents of a corpus's pieces that curation keeps."""

    corpus: CorpusConfig
    transform: TransformConfig | None
    decided: Mapping[Piece, PieceMask]

    def of_piece(self, piece: Piece) -> PieceMask | None:
        """The decisions on a piece; None if all of it is kept."""
        return self.decided.get(piece)

    def read(self, piece: Piece, on_bad: OnBad) -> Iterator[Document]:
        """The documents of a piece. Raises as `read_curated`."""
        return read_curated(piece, self.corpus, on_bad, self.transform, self.of_piece(piece))


def open_reader(
    store: Store, data: DataConfig, corpus: CorpusConfig, pieces: Sequence[Piece], key: str | None
) -> Reader:
    """The reader of a corpus, with the decisions under a key; without a key all documents are kept."""
    transform = data.curation.transform if data.curation else None
    decided = open_decisions(store, key, corpus.name).of_pieces(pieces, corpus) if key is not None else {}
    return Reader(corpus, transform, decided)


def identities(pieces: Sequence[Piece]) -> list[list[Any]]:
    """The identities of pieces for decisions."""
    return [[piece.key, piece.index, piece.last, piece.sha256] for piece in pieces]


def transform_options(transform: TransformConfig | None) -> list[Any]:
    """What a shard's bytes depend on besides raw text and decisions; empty without transformations."""
    return [TRANSFORM_FORMAT, UNICODE, transform.model_dump()] if transform else []


def decisions_behind(made: Manifest) -> list[str]:
    """The key of the decisions from which shards were built or a tokenizer was trained, if any."""
    decisions = made.inputs.get("decisions")
    return [decisions.key] if decisions else []


def read_decisions(store: Store, key: str) -> Manifest:
    """The manifest of published decisions. Raises `ArtifactError` if there is none."""
    return require_manifest(store, key, KIND, "holds no decisions; start the command again to curate the text")


def corpora_left(store: Store, data: DataConfig, decisions: ArtifactRef | None) -> list[CorpusConfig]:
    """The corpora with kept documents, or all if there are no decisions yet. All documents of the others are duplicates
    of documents in these.
    """
    if decisions is None or not decisions.content:
        return data.corpora
    table = read_decisions(store, decisions.key).details["table"]
    return [corpus for corpus in data.corpora if table[corpus.name][0]["documents"]]


def decisions_alike(store: Store, key: str, corpus: str) -> list[str]:
    """The keys of all decisions that keep the same documents of the same text of a corpus; `key` comes first.

    Shards are not rebuilt if other decisions, such as with more evaluation sets, keep the same documents.
    """
    own, wanted = read_decisions(store, key), open_decisions(store, key, corpus)

    def is_alike(other: str) -> bool:
        try:
            manifest = read_manifest(store, other, KIND)
            if manifest is None or _read_as(manifest, corpus) != _read_as(own, corpus):
                return False
            found = open_decisions(store, other, corpus)
        except ArtifactError as error:
            log.warning("%s: these decisions are ignored", error)
            return False
        return identities(found.pieces) == identities(wanted.pieces) and np.array_equal(
            found.reasons == 0, wanted.reasons == 0
        )

    others = (f"{KIND}/{name}" for name in store.names(KIND))
    return [key, *(other for other in others if other != key and is_alike(other))]


def _read_as(manifest: Manifest, corpus: str) -> list[Any] | None:
    """How a corpus is read, and how much of it is kept; None if the decisions do not cover it."""
    details = manifest.details
    if corpus not in details["table"]:
        return None
    reading = manifest.recipe["data.corpora"].get(corpus)
    return [details["curation"]["transform"], reading, details["table"][corpus][:1]]


def open_decisions(store: Store, key: str, corpus: str) -> CorpusDecisions:
    """The decisions on a corpus. Raises `ArtifactError` if they are missing or damaged, or do not cover the corpus."""
    manifest = read_decisions(store, key)
    firsts: Mapping[str, int] = manifest.details["first_documents"]
    pieces = read_pieces(store, key, manifest)
    if corpus not in firsts or corpus not in pieces:
        raise ArtifactError(f"{store.path(key)} has decisions on {', '.join(firsts)}, not on {corpus}")
    with np.load(io.BytesIO(_read_file(store, key, manifest, f"{corpus}.npz"))) as arrays:
        found = (arrays[name] for name in CorpusDecisions._fields[3:])
        return CorpusDecisions(store.path(key), pieces[corpus], firsts[corpus], *found)


def read_pieces(store: Store, key: str, manifest: Manifest) -> dict[str, list[Piece]]:
    """The pieces with decisions, by corpus. Raises `ArtifactError` if their list is missing or damaged."""
    try:
        return LISTED.validate_json(_read_file(store, key, manifest, PIECES))
    except ValidationError as error:
        raise ArtifactError(f"{store.path(key)}/{PIECES} is damaged: {in_one_line(error)}{REPAIR}") from error


def _read_file(store: Store, key: str, manifest: Manifest, name: str) -> bytes:
    record = next((record for record in manifest.files if record.name == name), None)
    if record is None:
        raise ArtifactError(f"{store.path(key)}/{MANIFEST} lists no {name}{REPAIR}")
    return read_made(store, key, record)
