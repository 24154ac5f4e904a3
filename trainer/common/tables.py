"""Tables and pairs as rows of text, as the terminal and as markdown show them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

Pairs = list[tuple[str, str]]
"""Things told one at a time: a name and a text."""


class Table(NamedTuple):
    """Columns and rows of text; the first `words` columns are words, the others figures. `total` is a last, weightier
    row.

    `diagonal`: in row i the figure in column i stands out.
    """

    columns: list[str]
    rows: list[list[str]]
    total: list[str] | None = None
    words: int = 1
    diagonal: bool = False


def markdown_table(table: Table) -> str:
    """A table in markdown, with figures to the right."""
    marks = [":---" if place < table.words else "---:" for place in range(len(table.columns))]
    total = [[f"**{markdown_text(cell)}**" if cell else "" for cell in table.total]] if table.total else []
    rows = [[markdown_text(cell) for cell in row] for row in [table.columns, *table.rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], marks, *rows[1:], *total])


def text_table(table: Table) -> str:
    """A table as lines of text, in columns, with figures to the right."""
    rows = [table.columns, *table.rows, *([table.total] if table.total else [])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if place < table.words else ">" for place in range(len(widths))]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def text_pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each pair, the texts in a column of their own."""
    return [f"{name:<15} {text}" for name, text in pairs]


def markdown_pairs(title: str, pairs: Pairs) -> str:
    """Pairs as a markdown table of two columns."""
    return markdown_table(Table([title, "Value"], [list(pair) for pair in pairs], words=2))


MARKS = re.compile(r"[\\`*\[\]|$]|(?<![^\W_])_|_(?![^\W_])|(?<!\s)~|~(?!\s)")
"""What means something in markdown; not an underscore within a word, nor a tilde by itself."""


def markdown_text(text: str) -> str:
    """Text on one line that markdown shows as it is."""
    escaped = re.sub(r"[<>&]", lambda mark: f"&#{ord(mark[0])};", MARKS.sub(r"\\\g<0>", " ".join(text.split())))
    return escaped
