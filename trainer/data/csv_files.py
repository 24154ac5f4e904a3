"""CSV and TSV files: how they are read, and what to try where that fails."""

import csv
from collections.abc import Sequence
from typing import Any, Protocol

FORMAT_OF_ENDING = {"csv": "csv", "tsv": "csv", "jsonl": "jsonl", "json": "jsonl", "parquet": "parquet"}
"""How files are read, by how their names end."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What usually divides columns."""

QUOTE = "; if quote characters quote here, set quoting to true"
UNQUOTE = "; if quote characters are text here, set quoting to false"


class CsvSettings(Protocol):
    """What says how csv files are read: a corpus, or a labelled data set."""

    @property
    def delimiter(self) -> str | None: ...

    @property
    def quoting(self) -> bool | None: ...


def csv_dialect(settings: CsvSettings, path: str) -> dict[str, Any]:
    """How a file is read, as options of `csv.reader`: delimiter and quoting as given, else by the file's name.

    Files with tabs between columns are not quoted unless it is said, as a quote there is a text's own. Quoted ones are
    read strictly, because a stray quote would otherwise make one text out of many records and say nothing.
    """
    delimiter = settings.delimiter or ("\t" if ".tsv" in path.rsplit("/", 1)[-1].lower() else ",")
    quoted = delimiter != "\t" if settings.quoting is None else settings.quoting
    return {"delimiter": delimiter, "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, "strict": True}


def is_quoted(dialect: dict[str, Any]) -> bool:
    """Whether quote characters quote in this dialect."""
    return bool(dialect["quoting"] != csv.QUOTE_NONE)


def quoting_hint(settings: CsvSettings, path: str) -> str:
    """What to try if a record has too few or too many columns."""
    if is_quoted(csv_dialect(settings, path)):
        return UNQUOTE
    return QUOTE if settings.quoting is None else ""


def delimiter_hint(header: Sequence[str], wanted: Sequence[str]) -> str:
    """What to try if a first row lacks a column: another delimiter, if one divides it into columns of which some are
    wanted.
    """
    for delimiter, spelt in DELIMITERS.items():
        if set(wanted) & {name.strip(' "') for cell in header if delimiter in cell for name in cell.split(delimiter)}:
            return f"; its columns seem to be divided by {spelt}: set delimiter to {delimiter!r}"
    return ""


def csv_hint(path: str) -> str:
    """What to say of a file that is read as JSON Lines and is named as CSV files are."""
    return "; by its name it is a CSV file, but it is read as JSON Lines" if format_by_name(path) == "csv" else ""


def format_by_name(path: str) -> str | None:
    """How a file is read, by how its name ends, before the ending of a packed one; None if that tells nothing.

    A web address's query is no part of the name; elsewhere a question mark may be one of a pattern.
    """
    if path.lower().startswith(("http://", "https://")):
        path = path.partition("#")[0].partition("?")[0]
    endings = reversed(path.rpartition("/")[2].lower().split(".")[1:])
    return next((FORMAT_OF_ENDING[ending] for ending in endings if ending in FORMAT_OF_ENDING), None)
