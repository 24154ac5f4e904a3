"""Formatting of numbers, names, values and tables for terminals and Markdown, and as JSON. A missing value is –.

The `z` of a format keeps a rounded negative value from being shown as -0.
"""

import difflib
import io
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from pydantic_core import to_jsonable_python

NOTHING = "–"
MINUS = "\u2212"
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def number(value: float | None, places: int = 3) -> str:
    """A fixed number of decimals, with thousands separators: 6.528, 1,234.500."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:z,.{places}f}".replace("-", MINUS)


def count(value: float | None) -> str:
    """A whole number: 122,880."""
    return number(value, 0)


def significant(value: float | None, digits: int = 3) -> str:
    """A few significant digits, without an exponent if possible: 0.0306, 12.5, 4,530, 1.2e+06."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:z.{digits}g}"
    return f"{value:,.0f}".replace("-", MINUS) if "e+" in text and abs(value) < 1e6 else text.replace("-", MINUS)


def score(value: float | None) -> str:
    """A metric: four decimals, or four significant digits for very small or large values: 0.8603, 2.5e-05.

    One that is not 1 does not seem to be: 0.99996.
    """
    if value is None or value == 0 or 1e-3 <= abs(value) < 1e4:
        return number(value, decimals_apart(abs(value), 1.0) if value else 4)
    return significant(value, 4)


def plain_score(value: float, other: float | None = None) -> str:
    """The same for log lines, in ASCII, and in full if large: -0.2500, 52345.6780, 2.5e+60, nan.

    If `other` is given, a different value does not seem to be that one: 0.81999 beside 0.82.
    """
    if not math.isfinite(value):
        return str(value)
    places = decimals_apart(value, other)
    if 1e4 <= abs(value) < 1e15 or places > 4:
        return f"{value:z.{places}f}"
    return score(value).replace(MINUS, "-")


def decimals_apart(value: float, other: float | None) -> int:
    """The fewest decimals, from four to nine, with which a value does not seem to be another, if any; else four."""
    apart = (places for places in range(4, 10) if other is not None and round(value, places) != round(other, places))
    return next(apart, 4)


def short(value: float | None) -> str:
    """A large number with three digits: 2.62 M."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) < 1e4:
        return count(value)
    unit, suffix = next((each for each in UNITS if abs(value) >= 0.9995 * each[0]), UNITS[-1])
    places = max(0, 3 - len(f"{abs(value) / unit:.0f}"))
    return f"{number(value / unit, places)} {suffix}"


def percent(share: float | None) -> str:
    """A fraction as a percentage with three digits: 40.6 %. One that is not the whole does not seem to be: 99.98 %."""
    if share is None or not math.isfinite(share):
        return NOTHING
    digits = next((each for each in range(3, 10) if share == 1 or float(f"{100 * share:.{each}g}") != 100), 9)
    return f"{significant(100 * share, digits)} %"


def duration(seconds: float | None) -> str:
    """A duration: 0.3 ms, 451 ms, 28.2 s, 4 min 05 s, 2 h 03 min."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 0.9995:
        return f"{significant(1000 * seconds)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    whole = round(seconds / 60)
    return f"{whole // 60} h {whole % 60:02} min"


def size(value: float) -> str:
    """A number of bytes: 10.0 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if round(value, 1) < 1024:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def perplexity_of(loss: float) -> float:
    """The exponential of a mean loss in nats; of a finite loss, at most about the largest float."""
    return math.exp(min(loss, 700.0)) if math.isfinite(loss) else loss


def perplexity(loss: float | None) -> str:
    """The perplexity of a loss with three digits, or as a whole number: 3.42, 684, 4,194."""
    return NOTHING if loss is None or not math.isfinite(loss) else significant(perplexity_of(loss))


def plural(value: int, noun: str, many: str | None = None) -> str:
    """A number with its noun: 1 rank, 60 steps."""
    return f"{count(value)} {noun if value == 1 else many or noun + 's'}"


CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters with which a raw or generated text could control a terminal."""


def visible(text: str) -> str:
    """The text with control characters escaped."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def escaped(text: str, stream: TextIO | None = None) -> str:
    """The text as it is printed, by default to standard output: with control characters escaped on a terminal."""
    return visible(text) if (stream or sys.stdout).isatty() else text


def escape_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as escapes, as Python does on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show(text: str) -> None:
    """Print a text, `escaped`; a reader that stops early, such as `head`, is not an error."""
    with any_reader():
        sys.stdout.write(escaped(text))


@contextmanager
def any_reader() -> Iterator[None]:
    """A block that prints, and ends without an error where a reader stops early; what follows is not printed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


NAMED = 5
"""Maximum number of names in a message."""

ALIKE = 0.5
"""Minimum similarity, by `difflib`, of a suggested name; low enough to match a run's name without its digest."""


def some(names: Iterable[object], most: int = NAMED) -> str:
    """The first names, and how many more there are: `a, b and 3 more`."""
    texts = [*map(str, names)]
    return ", ".join(texts[:most]) + (f" and {count(len(texts) - most)} more" if len(texts) > most else "")


def suggest_nearest(name: str, known: Sequence[str]) -> str:
    """The known names most similar to a name, as the end of a message; if none is similar, the first names."""
    if not known:
        return "there is none"
    if close := difflib.get_close_matches(name, known, NAMED, ALIKE):
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"there are {some(map(repr, known))}"


def show_json(value: Any) -> None:
    """Print a value as JSON: models and named tuples as objects, times in ISO 8601, NaN and infinities as null."""
    # Again, because models keep NaN and infinities at first.
    plain = to_jsonable_python(to_jsonable_python(_named(value)), inf_nan_mode="null")
    is_unicode = str(sys.stdout.encoding).lower().startswith("utf")  # else JSON's escapes, not those of `show`
    show(json.dumps(plain, indent=2, ensure_ascii=not is_unicode) + "\n")


def _named(value: Any) -> Any:
    """The value with named tuples as dictionaries; JSON would write them as lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(each) for name, each in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    return value


Pairs = list[tuple[str, str]]
"""Pairs of a name and a text."""


class Table(NamedTuple):
    """Columns and rows of text; the first `words` columns are words, the others numbers. `total` is a last, bold row.

    `diagonal`: highlight the number in row i and column i.
    """

    columns: list[str]
    rows: list[list[str]]
    total: list[str] | None = None
    words: int = 1
    diagonal: bool = False


def markdown_table(table: Table) -> str:
    """A table in Markdown, with numbers right-aligned."""
    marks = [":---" if place < table.words else "---:" for place in range(len(table.columns))]
    total = [[f"**{markdown_text(cell)}**" if cell else "" for cell in table.total]] if table.total else []
    rows = [[markdown_text(cell) for cell in row] for row in [table.columns, *table.rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], marks, *rows[1:], *total])


def text_table(table: Table) -> str:
    """A table as lines of text, with numbers right-aligned."""
    rows = [table.columns, *table.rows, *([table.total] if table.total else [])]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]

    def padded(place: int, cell: str) -> str:
        space = " " * (widths[place] - _width(cell))
        return cell + space if place < table.words else space + cell

    lines = ["  ".join(padded(place, cell) for place, cell in enumerate(row)) for row in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _width(text: str) -> int:
    """The columns that a text takes in a terminal: two for a wide character, as in Chinese, none for an accent."""
    return sum(
        0 if unicodedata.category(each) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def text_pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each pair, with the texts aligned."""
    return [f"{name:<15} {text}" for name, text in pairs]


def markdown_pairs(title: str, pairs: Pairs) -> str:
    """Pairs as a Markdown table of two columns."""
    return markdown_table(Table([title, "Value"], [list(pair) for pair in pairs], words=2))


MARKS = re.compile(r"[\\`*\[\]|$]|(?<![^\W_])_|_(?![^\W_])|(?<!\s)~|~(?!\s)")
"""Characters with a meaning in Markdown; not an underscore inside a word, nor a tilde surrounded by spaces."""


def markdown_text(text: str) -> str:
    """The text on one line, escaped for Markdown."""
    escaped = re.sub(r"[<>&]", lambda mark: f"&#{ord(mark[0])};", MARKS.sub(r"\\\g<0>", " ".join(text.split())))
    return escaped
