"""A look at the beginning of a corpus's files before long work: whether they hold text, read as the corpus says."""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError
from trainer.common.formats import count, plural
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.corpus.pieces import Piece
from trainer.corpus.raw_files import open_raw
from trainer.corpus.readers import read_head

log = logging.getLogger(__name__)

FILES = 16
"""Files of a corpus that are looked at, evenly spread over all of them."""

RECORDS, HEAD_BYTES = 256, 2**20
"""How many records of a file are looked at, and about how many bytes of text."""

MOST_NULLS = 0.01
"""The share of NUL characters from which on a file is taken for binary; other control characters are some text's own."""

FEW_NULLS = 32
"""NUL characters that a file of any size may hold."""

ALTERNATING = re.compile(r"(?:\0[^\0]|[^\0]\0){2,}")
"""Latin letters in UTF-16, of which every other byte is NUL."""


class _Enough(Exception):
    """So many bad records of a file were looked at."""


def look_at_text(corpus: CorpusConfig, paths: Sequence[str]) -> None:
    """Read the first records of some of a corpus's files, as tokenization will.

    Raises `CorpusError` for a file that cannot be read, has not the column or is binary, and `RecordError` for more bad
    records than may be skipped. Where all that were looked at are bad, and may be skipped, it warns.
    """
    bad, good = BadRecords(corpus.max_bad_records), 0
    for path in _spread(paths):
        check_stop()
        good += _look_at(path, corpus, bad)
    if bad.count and not good:
        log.warning(
            "corpus %r: none of the first %s can be read: %s; check data.corpora: its paths and format",
            corpus.name, plural(bad.count, "record"), "; ".join(bad.first),
        )  # fmt: skip


def files_of(pieces: Sequence[Piece]) -> list[str]:
    """The paths of the files that some pieces are of."""
    return list(dict.fromkeys(piece.path for piece in pieces))


def _spread(paths: Sequence[str]) -> list[str]:
    chosen = min(FILES, len(paths))
    return [paths[number * len(paths) // chosen] for number in range(chosen)]


def _look_at(path: str, corpus: CorpusConfig, bad: BadRecords) -> int:
    """How many good records are at the beginning of a file."""
    documents = characters = nulls = alternating = 0
    before = bad.count

    def on_bad(error: RecordError) -> None:
        bad.add(error)
        if bad.count == before + RECORDS:
            raise _Enough

    with suppress(_Enough):
        for document in islice(read_head(path, corpus, on_bad), RECORDS):
            text = document.text[:HEAD_BYTES].decode(errors="ignore")
            documents += 1
            characters += len(text)
            nulls += text.count("\0")
            alternating += sum(map(len, ALTERNATING.findall(text))) if "\0" in text else 0
            if characters >= HEAD_BYTES:
                break
    if nulls > max(MOST_NULLS * characters, FEW_NULLS):
        utf16 = alternating > 0.5 * characters
        like = "as in UTF-16 without a byte order mark" if utf16 else "as in a binary file, or in UTF-16"
        convert = f"convert it, such as by `iconv -f {_utf16(path)} -t UTF-8`, or leave" if utf16 else "convert it, or leave"
        raise CorpusError(
            f"corpus {corpus.name!r}: {path}: of its first {count(characters)} characters, {nulls / characters:.0%} are "
            f"NUL, {like}; expected text in UTF-8: {convert} the file out of data.corpora's paths"
        )
    return documents


def _utf16(path: str) -> str:
    """Which order of bytes a file in UTF-16 has whose letters are Latin: in big-endian order, the first byte of each is 0."""
    with open_raw(path) as file:
        head = file.read(HEAD_BYTES)
    return "UTF-16BE" if head[::2].count(0) > head[1::2].count(0) else "UTF-16LE"
