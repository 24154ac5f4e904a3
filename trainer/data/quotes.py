"""Quotes of csv files that seem to mean something else than they are taken for, such as ones that swallow line ends."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from trainer.data.csv_files import UNQUOTE, CsvSettings, csv_dialect, is_quoted
from trainer.data.records import Record

log = logging.getLogger(__name__)


SHORT_TEXT = 500
"""Characters; texts of no more on average are lines of a table rather than documents with line ends of their own."""

RARE = 0.05
"""The share of records that span lines up to which they are exceptions in their file."""


def watched(
    records: Iterable[Record],
    columns: Sequence[str],
    settings: CsvSettings,
    path: str,
) -> Iterator[Record]:
    """The records of a file, with texts in some columns.

    At the end it warns of signs that quote characters mean something else than they are taken for: if a few records go
    on over line ends, the others being short, or if texts are quoted after all.
    """
    quoted = is_quoted(csv_dialect(settings, path))
    count = odd = characters = 0
    first: Callable[[], str] | None = None
    for record in records:
        yield record
        place, values, wrong, spans = record
        if wrong is not None:
            continue
        count += 1
        # A column may be missing: the file was replaced, which is told at its end.
        if spans if quoted else any(_is_escaped(values.get(column) or "") for column in columns):
            odd += 1
            first = first or place
        else:
            for column in columns:
                characters += len(values.get(column) or "")
    if first is None:
        return
    more, others = f", and {odd - 1:,} more do" if odd > 1 else "", count - odd
    if not quoted and settings.quoting is None:
        log.warning(
            "%s: a text stands in quotes, its own quotes doubled%s, but quote characters are taken as text in files "
            "with tabs between columns; if they quote here, set quoting to true", first(), more,
        )  # fmt: skip
    elif quoted and odd <= RARE * count and characters <= SHORT_TEXT * others:
        log.warning(
            "%s: a record in quotes goes on over line ends%s, while the other %s are short and on a line each: are "
            "several records taken for one%s?", first(), more, f"{others:,}", UNQUOTE,
        )  # fmt: skip


def _is_escaped(text: str) -> bool:
    """Whether a text is written as csv writes one that holds quotes."""
    return (
        len(text) > 3 and text[0] == text[-1] == '"' and '""' in text[1:-1] and '"' not in text[1:-1].replace('""', "")
    )
