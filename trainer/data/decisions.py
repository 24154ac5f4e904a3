"""What curation decided, as an artifact, and documents as it lets them through.

What is decided of a piece is a bit for each of its documents, in the order in which they are read.

    CORPUS.npz       counts      int64, the documents of each piece, in the order of pieces.json
                     reasons     uint8, one a document: 0 if it stays, else a number of the manifest's list of reasons
                     duplicates  int64, the documents, counted from 0 in this corpus, that are duplicates of another
                     originals   int64, those others, counted from 0 over all corpora: the first of exact copies, which
                                 may be a near duplicate of a further one, and of near duplicates the one that stays
                     similarity  float32, the Jaccard similarity of the two sets of n-grams; 1 of exact copies
                     contained   float32, the share of the duplicate's n-grams that the original has; 1 of exact copies
    pieces.json      by corpus, the pieces that were decided about, in their order

A document that is read in parts is decided about part by part.
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
from trainer.store.manifest import MANIFEST, REPAIR, ArtifactRef, Manifest, read_made, read_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


TRANSFORM_FORMAT = 3
"""Raised when a transformation gives other text, so that what was made of the old is not taken for what would be made
now.
"""

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
"""It begins where such a run of characters does: else each of them would be tried as a beginning."""

NUMBER = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IP4 = re.compile(rf"(?<![\w.])(?:{NUMBER}\.){{3}}{NUMBER}(?![\w]|\.\d)")
IP6 = re.compile(r"(?<![\w:.])(?P<label>[A-Za-z_]\w{0,31}:)?(?P<number>[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,35})(?![\w:])")
"""A number of IP version 6, which may stand behind what it is of, as in `ip:2001:db8::1`."""


def mask_email(text: str) -> str:
    return EMAIL.sub("<email>", text)


def mask_ip(text: str) -> str:
    return IP6.sub(_mask_ip6, IP4.sub("<ip>", text))


def _mask_ip6(found: re.Match[str]) -> str:
    """What stands for a number of IP version 6; what may as well be a slice or a name of a program, such as 1::2,
    stays.
    """
    colon = ":" if found[0].endswith(":") and not found[0].endswith("::") else ""  # as of a list, behind the number
    whole, number = found[0].removesuffix(colon), found["number"].removesuffix(colon)
    if _is_ip6(whole):  # the label is its first group
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
    """What was decided of a piece: which of its documents stay, in packed bits, of how many.

    `goes_on` is whether the first part of the file's next piece stays, which a document that is cut between them needs
    to know: its end is marked where the last part of it stands that stays.
    """

    documents: int
    kept: bytes
    goes_on: bool

    @classmethod
    def of(cls, kept: NDArray[np.bool_], goes_on: bool) -> "PieceMask | None":
        """None where all stay, and so does what follows: the piece is read as it is."""
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
    """The documents of a piece that stay.

    Raises as `read_documents`, and `ArtifactError` if what was decided is of another piece.
    """
    documents = read_documents(piece, corpus, on_bad, columns)
    if transform is not None:
        documents = map(partial(transformed, transform), documents)
    return documents if decided is None else _kept(documents, piece, decided)


def transformed(transform: TransformConfig, document: Document) -> Document:
    """A document as it is made of its raw text."""
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
            f"{piece.path}: piece {piece.index} has {found} documents, {len(bits)} were decided about: the decisions "
            "are of other raw text; start the command again, which decides anew"
        )


KIND = "decisions"
FORMAT = 5
PIECES = "pieces.json"
LISTED = TypeAdapter(dict[str, list[Piece]])


class CorpusDecisions(NamedTuple):
    """What was decided of one corpus; `first` is the number of its first document over all corpora, `place` for
    messages.
    """

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

    def of_pieces(self, pieces: Sequence[Piece], corpus: CorpusConfig) -> dict[Piece, PieceMask]:
        """What was decided of each piece, of those of which not all stay. Raises `ArtifactError` if they are other
        pieces.
        """
        if identities(self.pieces) != identities(pieces):
            raise ArtifactError(
                f"the decisions in {self.place} are of other raw files than those that are there now; start the "
                "command again, which decides anew, and if it says the same, delete them"
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
    """Reads the documents of a corpus's pieces, as curation lets them through."""

    corpus: CorpusConfig
    transform: TransformConfig | None
    decided: Mapping[Piece, PieceMask]

    def of_piece(self, piece: Piece) -> PieceMask | None:
        """What was decided of a piece; None if all of it stays."""
        return self.decided.get(piece)

    def read(self, piece: Piece, on_bad: OnBad) -> Iterator[Document]:
        """The documents of a piece. Raises as `read_curated`."""
        return read_curated(piece, self.corpus, on_bad, self.transform, self.of_piece(piece))


def open_reader(
    store: Store, data: DataConfig, corpus: CorpusConfig, pieces: Sequence[Piece], key: str | None
) -> Reader:
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
    """The corpora of which documents stay, all while nothing is decided. Another's are all duplicates of documents of
    these.
    """
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
        return identities(found.pieces) == identities(wanted.pieces) and np.array_equal(
            found.reasons == 0, wanted.reasons == 0
        )

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
    """What was decided of one corpus. Raises `ArtifactError` if that is missing or damaged, or nothing was decided of
    it.
    """
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
