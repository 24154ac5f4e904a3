"""Documents of corpora: the records of a piece of a raw file in, their texts out, as UTF-8 bytes that were checked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from trainer.common.errors import RecordError
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.data.csv_files import delimiter_hint
from trainer.data.pieces import Piece
from trainer.data.quotes import watched
from trainer.data.raw_bytes import open_piece
from trainer.data.raw_files import open_as, reading
from trainer.data.records import FORMATS, Reading, Span, Table
from trainer.data.texts import NO_NUMBERS, TEXTS, Document, OnBad

NAMED_BY = "; text_field says which one holds the text"


Columns = Sequence[str]
"""What is read beside the text, where a format has more than text."""


def ignore(error: RecordError) -> None:
    """Pass over a bad record: the tokenization proper reports it."""


def refuse(error: RecordError) -> None:
    """Raise the error of a bad record."""
    raise error


def read_documents(
    piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns = (), with_empty: bool = False
) -> Iterator[Document]:
    """The documents of a piece, in the file's order; empty ones are left out, unless `with_empty`. Of records, numbers
    in `columns` are read too.

    Raises `CorpusError` for a damaged file, and `ChangedFile`, after the last document, if the bytes that were read are
    not those that the piece stands for.
    """
    span = Span(piece.path, piece.path, piece.start, piece.end, piece.last)
    with reading(piece.path), open_piece(piece, corpus) as file:
        for document in _documents(file, span, corpus, on_bad, columns):
            check_stop()
            if document.text or with_empty:
                yield document


def read_head(path: str, corpus: CorpusConfig, on_bad: OnBad) -> Iterator[Document]:
    """The documents of a file from its beginning on, of which no digest is known, for a reader that gives up early.

    Raises as `read_documents` does, but for `ChangedFile`.
    """
    with reading(path), open_as(corpus.format, path) as file:
        yield from _documents(file, Span(path, path), corpus, on_bad, ())


def open_corpus(file: IO[bytes], span: Span, corpus: CorpusConfig) -> Table:
    """An open file of a corpus as records, of a format that has any."""
    return FORMATS[corpus.format](file, span, Reading(corpus.format, corpus.delimiter, corpus.quoting, all_text=True))


def _documents(
    file: IO[bytes], span: Span, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    if corpus.format in TEXTS:
        return TEXTS[corpus.format](file, span, corpus.separator, on_bad)
    return _documents_of_records(file, span, corpus, on_bad, columns)


def _documents_of_records(
    file: IO[bytes], span: Span, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    field, table = corpus.text_field, open_corpus(file, span, corpus)
    if table.columns is not None and field not in table.columns:
        found, hint = "it has", ""
        if corpus.format == "csv":
            found, hint = "its first line names", delimiter_hint(table.columns, [field])
        there = ", ".join(table.columns) or "none"
        raise RecordError(f"{span.name}: no column {field!r}; {found} {there}{hint or NAMED_BY}")
    records = table.records([field, *columns])
    if corpus.format == "csv":
        records = watched(records, [field], corpus, span.name)
    for place, values, wrong, _ in records:
        if wrong is not None:
            on_bad(wrong)
            continue
        try:
            document = Document(_text(values, field), True, _numbers(values, columns) if columns else NO_NUMBERS)
        except ValueError as error:
            on_bad(RecordError(f"{place()}: {error}"))
        else:
            yield document


def _text(values: Mapping[str, Any], field: str) -> bytes:
    """The text of a record. Raises `ValueError` if it has none."""
    text = values.get(field)
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"field {field!r} holds half of a surrogate pair at character {error.start}") from error
    if field not in values:
        raise ValueError(f"no field {field!r}; it has {', '.join(map(str, values)) or 'none'}{NAMED_BY}")
    raise ValueError(f"field {field!r} holds {type(text).__name__}, not text")


def _numbers(values: Mapping[str, Any], columns: Columns) -> dict[str, float]:
    """The numbers in some columns of a record; what is none is left out."""
    found = {}
    for name in columns:
        with suppress(TypeError, ValueError, OverflowError):
            found[name] = float(values.get(name))  # type: ignore[arg-type]
    return found
