"""Signs that `quoting`, the setting of csv files, is set wrongly."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from trainer.data.raw_files import UNQUOTE, CsvSettings, csv_dialect, is_quoted
from trainer.data.tables import Record

log = logging.getLogger(__name__)

SHORT_TEXT = 500
"""Characters; texts that are not longer on average are lines of a table, not documents with line ends of their own."""

RARE = 0.05
"""Up to this share, records that span lines are exceptions in their file."""


def watched(
    records: Iterable[Record],
    columns: Sequence[str],
    settings: CsvSettings,
    path: str,
) -> Iterator[Record]:
    """The records of a file, unchanged; `columns` are those with texts.

    At the end it warns of signs that `quoting` is set wrongly: a few records span lines while the others are short, or
    texts are in quotes although the file is read without quoting.
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
        # A column may be missing if the file was replaced, which is reported at its end.
        if spans if quoted else any(_is_escaped(values.get(column) or "") for column in columns):
            odd += 1
            first = first or place
        else:
            for column in columns:
                characters += len(values.get(column) or "")
    if first is None:
        return
    more, others = f", and {odd - 1:,} more" if odd > 1 else "", count - odd
    if not quoted and settings.quoting is None:
        log.warning(
            "%s: a text is in quotes, with inner quotes doubled%s, but files with tabs are read without quoting; if "
            "quote characters delimit texts here, set quoting to true", first(), more,
        )  # fmt: skip
    elif quoted and odd <= RARE * count and characters <= SHORT_TEXT * others:
        log.warning(
            "%s: a record in quotes spans several lines%s, while the other %s are short and on one line: perhaps "
            "several records were read as one%s", first(), more, f"{others:,}", UNQUOTE,
        )  # fmt: skip


def _is_escaped(text: str) -> bool:
    """Whether a text is written in csv's form for a text with quotes."""
    return (
        len(text) > 3 and text[0] == text[-1] == '"' and '""' in text[1:-1] and '"' not in text[1:-1].replace('""', "")
    )
