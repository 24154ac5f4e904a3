"""Which document something is wrong with: `PATH#N`, the Nth of a file, counted from 1, as `headrace curation show` takes it."""

from collections.abc import Iterable, Sequence
from typing import Any

from trainer.common.errors import CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.data.pieces import Piece
from trainer.data.readers import ignore, read_documents


class PlaceError(CorpusError):
    """Something is wrong with a document of a corpus's piece; `number` is how many stand before it there."""

    def __init__(self, corpus: str, piece: Piece, number: int, message: str) -> None:
        super().__init__(message)
        self.corpus, self.piece, self.number = corpus, piece, number

    def __reduce__(self) -> Any:
        return PlaceError, (self.corpus, self.piece, self.number, str(self))


def with_address(error: PlaceError, corpora: Iterable[tuple[CorpusConfig, Sequence[Piece]]]) -> CorpusError:
    """The error with the document's address, for which the documents of the file's pieces before this one are counted."""
    ((corpus, pieces),) = [each for each in corpora if each[0].name == error.corpus]
    before = [piece for piece in pieces if piece.path == error.piece.path and piece.index < error.piece.index]
    number = sum(1 for piece in before for _ in read_documents(piece, corpus, ignore)) + error.number + 1
    return CorpusError(f"corpus {corpus.name!r}: {error.piece.path}#{number}: {error}")
