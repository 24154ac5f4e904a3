"""Documents of corpora: reads the records of a piece of a raw file and returns their texts as valid UTF-8 bytes.

A new format of plain text is one function and one line of `TEXT_FORMATS`. These formats are read without `Record`
objects, which would double the time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from trainer.common.errors import RecordError
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.data.pieces import Piece, open_piece, text_cuts
from trainer.data.quotes import watched
from trainer.data.raw_files import BOM, MAX_RECORD, compression_of, delimiter_hint, open_as, reading, spelling_hint
from trainer.data.tables import FORMATS, PART_BYTES, Reading, Span, Table, line_names, lines_in, not_utf8, read_number

NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


class Document(NamedTuple):
    """A document, or a part of one that is too large; `ends` says whether this is its last part.

    `columns` are the requested numbers that its record has besides the text.
    """

    text: bytes
    ends: bool
    columns: Mapping[str, float] = NO_NUMBERS


HINTS: dict[type, str] = {
    dict: "; a field within another is not read: copy the text to a field of its own",
    bytes: "; convert the column to strings",
}
"""What to do about a text of another type."""

OnBad = Callable[[RecordError], None]
"""Called with each bad record: raises, or returns to skip it."""

Columns = Sequence[str]
"""The columns to read besides the text, in formats with columns."""


def ignore(error: RecordError) -> None:
    """Skip a bad record without counting it: the final tokenization reports it."""


def refuse(error: RecordError) -> None:
    """Raise the error of a bad record."""
    raise error


def read_documents(
    piece: Piece, corpus: CorpusConfig, on_bad: OnBad, columns: Columns = (), with_empty: bool = False
) -> Iterator[Document]:
    """The documents of a piece in the file's order; empty ones are skipped, unless `with_empty`. Numbers in `columns`
    are read from records too.

    Raises `CorpusError` for a damaged file, and `ChangedFile`, after the last document, if the bytes read do not match
    the piece's digest.
    """
    span = Span(piece.path, piece.path, piece.start, piece.end, piece.last)
    with reading(piece.path), open_piece(piece, corpus) as file:
        for document in _documents(file, span, corpus, on_bad, columns):
            check_stop()
            if document.text or with_empty:
                yield document


def read_head(path: str, corpus: CorpusConfig, on_bad: OnBad) -> Iterator[Document]:
    """The documents from the beginning of a file without a known digest, for a reader that stops early.

    Raises as `read_documents` does, except `ChangedFile`.
    """
    with reading(path), open_as(corpus.format, path) as file:
        yield from _documents(file, Span(path, path), corpus, on_bad, ())


def open_corpus(file: IO[bytes], span: Span, corpus: CorpusConfig) -> Table:
    """An open file of a corpus as records; the format must have records."""
    return FORMATS[corpus.format](file, span, Reading(corpus.format, corpus, all_text=True))


def _documents(
    file: IO[bytes], span: Span, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    if corpus.format in TEXT_FORMATS:
        return TEXT_FORMATS[corpus.format](file, span, corpus.separator, on_bad)
    return _documents_of_records(file, span, corpus, on_bad, columns)


def _documents_of_records(
    file: IO[bytes], span: Span, corpus: CorpusConfig, on_bad: OnBad, columns: Columns
) -> Iterator[Document]:
    field, table = corpus.text_field, open_corpus(file, span, corpus)
    if table.columns is not None and field not in table.columns:
        found, hint = "it has", spelling_hint(table.columns, field)
        if corpus.format == "csv":
            found, hint = "its first line has", hint or delimiter_hint(table.columns, [field])
        names = ", ".join(table.columns) or "none"
        raise RecordError(f"{span.name}: no column {field!r}; {found} {names}{hint or corpus.named_by}")
    records = table.records([field, *columns])
    if corpus.format == "csv":
        records = watched(records, [field], corpus, span.name)
    for place, values, wrong, _ in records:
        if wrong is not None:
            on_bad(wrong)
            continue
        try:
            document = Document(_text(values, corpus), True, _numbers(values, columns) if columns else NO_NUMBERS)
        except ValueError as error:
            on_bad(RecordError(f"{place()}: {error}"))
        else:
            yield document


def _text(values: Mapping[str, Any], corpus: CorpusConfig) -> bytes:
    """The text of a record. Raises `ValueError` if it has none."""
    field = corpus.text_field
    text = values.get(field)
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"field {field!r} holds half of a surrogate pair at character {error.start}") from error
    if field not in values:
        hint = spelling_hint(values, field) or corpus.named_by
        raise ValueError(f"no field {field!r}; it has {', '.join(map(str, values)) or 'none'}{hint}")
    if text is None:
        raise ValueError(f"field {field!r} holds no text")
    hint = HINTS.get(type(text), "")
    raise ValueError(f"field {field!r} holds {type(text).__name__}, not text{hint}")


def _numbers(values: Mapping[str, Any], columns: Columns) -> dict[str, float]:
    """The numbers in some columns of a record; others are left out."""
    found = {}
    for name in columns:
        with suppress(TypeError, ValueError, OverflowError):
            found[name] = read_number(values.get(name))
    return found


def read_text(file: IO[bytes], span: Span, separator: str | None, on_bad: OnBad) -> Iterator[Document]:
    """One document per file, or per text between separator lines."""
    if separator is not None:
        found = ((text, offset, True) for text, offset in _separated(file, span, separator.encode()))
    else:
        found = ((part, offset, final and span.last) for part, offset, final in _parts(file, span))
    for text, offset, ends in found:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            on_bad(not_utf8(span, offset, error))
        else:
            yield Document(text, ends)


def read_source(file: IO[bytes], span: Span, separator: str | None, on_bad: OnBad) -> Iterator[Document]:
    """Source code: one document per file, with line ends normalised to a newline."""
    for document in read_text(file, span, separator, on_bad):
        yield document._replace(text=document.text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def read_lines(file: IO[bytes], span: Span, separator: str | None, on_bad: OnBad) -> Iterator[Document]:
    """One document per line."""
    for _, line, offset in lines_in(file, span):
        text = line.rstrip(b"\r\n")
        try:
            text.decode()
        except UnicodeDecodeError as error:
            on_bad(not_utf8(span, offset, error))
        else:
            yield Document(text, True)


TEXT_FORMATS: dict[str, Callable[[IO[bytes], Span, str | None, OnBad], Iterator[Document]]] = {
    "text": read_text,
    "source": read_source,
    "lines": read_lines,
}


def _parts(file: IO[bytes], span: Span) -> Iterator[tuple[bytes, int, bool]]:
    """A text in parts of a few MiB that end at allowed cuts; yields each with its offset and whether it is the last."""
    left = None if compression_of(span.path) else span.end - span.start
    remainder, offset = b"", span.start
    while True:
        block = file.read(PART_BYTES if left is None else min(PART_BYTES, left))
        if left is not None:
            left -= len(block)
        if offset == 0 and not remainder:
            bom = len(BOM) if block.startswith(BOM) else 0
            block, offset = block[bom:], bom
        if not block:
            yield remainder, offset, True
            return
        remainder += block
        if len(remainder) > MAX_RECORD:
            raise RecordError(
                f"{span.name}: no line end within {MAX_RECORD >> 20} MiB after byte {offset}; is this text?"
            )
        more_to_come = left > 0 if left is not None else len(block) == PART_BYTES
        if more_to_come and (at := max(text_cuts(remainder, max(0, len(remainder) - 65536)), default=None)) is not None:
            yield remainder[:at], offset, False
            remainder, offset = remainder[at:], offset + at


def _separated(file: IO[bytes], span: Span, separator: bytes) -> Iterator[tuple[bytes, int]]:
    """The texts between separator lines, and the byte offset of each."""
    lines: list[bytes] = []
    first = begin = size = 0

    def gathered() -> tuple[bytes, int]:
        return b"".join(lines).removesuffix(b"\n").removesuffix(b"\r"), begin

    for number, line, offset in lines_in(file, span):
        if line.rstrip(b"\r\n") == separator:
            yield gathered()
            lines, size = [], 0
        else:
            first, begin = (first, begin) if lines else (number, offset)
            lines.append(line)
            size += len(line)
            if size > MAX_RECORD:
                raise RecordError(
                    f"{line_names(span)(first)}: no separator line {separator!r} within {MAX_RECORD >> 20} MiB"
                )
    yield gathered()
