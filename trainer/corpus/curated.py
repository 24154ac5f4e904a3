"""Documents as curation lets them through: transformed first, then without those that were decided against.

What is decided of a piece is a bit for each of its documents, in the order in which they are read.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import TransformConfig
from trainer.corpus.pieces import Piece
from trainer.corpus.readers import Columns, Document, OnBad, read_documents

TRANSFORM_FORMAT = 1
"""Raised when a transformation gives other text, so that what was made of the old is not taken for what would be made now."""

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
"""It begins where such a run of characters does: else each of them would be tried as a beginning."""

NUMBER = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IP4 = re.compile(rf"(?<![\w.])(?:{NUMBER}\.){{3}}{NUMBER}(?![\w]|\.\d)")
IP6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{2,34}(?![\w:])")


def mask_email(text: str) -> str:
    return EMAIL.sub("<email>", text)


def mask_ip(text: str) -> str:
    return IP6.sub(_mask_ip6, IP4.sub("<ip>", text))


def _mask_ip6(found: re.Match[str]) -> str:
    """What stands for a number of IP version 6; what may as well be a slice or a name of a program, such as 1::2, stays."""
    groups = [group for group in found[0].split(":") if group]
    try:
        ipaddress.IPv6Address(found[0])
    except ValueError:
        return found[0]
    return "<ip>" if len(groups) > 2 or len(groups[0]) == 4 else found[0]


MASKS = {"email": mask_email, "ip": mask_ip}


@dataclass(frozen=True)
class Decided:
    """What was decided of a piece: which of its documents stay, in packed bits, of how many.

    `goes_on` is whether the first part of the file's next piece stays, which a document that is cut between them needs to
    know: its end is marked where the last part of it stands that stays.
    """

    documents: int
    kept: bytes
    goes_on: bool

    @classmethod
    def of(cls, kept: NDArray[np.bool_], goes_on: bool) -> "Decided | None":
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
    decided: Decided | None = None,
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


def _kept(documents: Iterator[Document], piece: Piece, decided: Decided) -> Iterator[Document]:
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
            f"{piece.path}: piece {piece.index} has {found} documents, {len(bits)} were decided about: the decisions are of "
            "other raw text; start the command again, which decides anew"
        )
