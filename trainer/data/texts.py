"""Texts of corpora: files of mere text, cut into documents, as UTF-8 bytes that were checked.

A new format of mere text is one function and one line of `TEXTS`. These are read without a record between, which would
take as long as the rest.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import IO, NamedTuple

from trainer.common.errors import RecordError
from trainer.data.pieces import text_cuts
from trainer.data.raw_files import BOM, MAX_RECORD, is_compressed
from trainer.data.records import PART_BYTES, Span, line_names, lines_in, not_utf8

NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


class Document(NamedTuple):
    """A document, or a part of one that is too large; `ends` says whether this is its last part.

    `columns` are numbers that its record has beside the text, of those that were asked for.
    """

    text: bytes
    ends: bool
    columns: Mapping[str, float] = NO_NUMBERS


OnBad = Callable[[RecordError], None]
"""Called with each bad record: raises, or returns to skip it."""


def read_text(file: IO[bytes], span: Span, separator: str | None, on_bad: OnBad) -> Iterator[Document]:
    """One document a file, or one between two separator lines."""
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
    """Source code: one document a file, with line ends normalised to a newline."""
    for document in read_text(file, span, separator, on_bad):
        yield document._replace(text=document.text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def read_lines(file: IO[bytes], span: Span, separator: str | None, on_bad: OnBad) -> Iterator[Document]:
    """One document a line."""
    for _, line, offset in lines_in(file, span):
        text = line.rstrip(b"\r\n")
        try:
            text.decode()
        except UnicodeDecodeError as error:
            on_bad(not_utf8(span, offset, error))
        else:
            yield Document(text, True)


TEXTS: dict[str, Callable[[IO[bytes], Span, str | None, OnBad], Iterator[Document]]] = {
    "text": read_text,
    "source": read_source,
    "lines": read_lines,
}


def _parts(file: IO[bytes], span: Span) -> Iterator[tuple[bytes, int, bool]]:
    """A text in parts of a few MiB that end where it may be cut; with each, its offset and whether it is the last."""
    left = None if is_compressed(span.path) else span.end - span.start
    held, offset = b"", span.start
    while True:
        block = file.read(PART_BYTES if left is None else min(PART_BYTES, left))
        if left is not None:
            left -= len(block)
        if offset == 0 and not held:
            bom = len(BOM) if block.startswith(BOM) else 0
            block, offset = block[bom:], bom
        if not block:
            yield held, offset, True
            return
        held += block
        if len(held) > MAX_RECORD:
            raise RecordError(
                f"{span.name}: no line end within {MAX_RECORD >> 20} MiB after byte {offset}; is this text?"
            )
        more_to_come = left > 0 if left is not None else len(block) == PART_BYTES
        if more_to_come and (at := max(text_cuts(held, max(0, len(held) - 65536)), default=None)) is not None:
            yield held[:at], offset, False
            held, offset = held[at:], offset + at


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
