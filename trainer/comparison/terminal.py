"""A comparison as text for a terminal."""

from collections.abc import Iterator

from trainer.comparison.account import Comparison
from trainer.comparison.curves import spark_table
from trainer.report.account import Block, Section
from trainer.report.tables import text_table

MARGIN = "  "


def describe(comparison: Comparison) -> str:
    """All sections, what came of the runs last, where a terminal ends; and lines of blocks in the place of curves."""
    curves = comparison.curves
    lines = [Block(table=spark_table(group)) for group in comparison.groups]
    drawn = Section(curves.title, [*curves.blocks, *lines])
    sections = [comparison.named, *comparison.differing, drawn, comparison.results]
    return "\n".join([*map(_section, sections), f"{comparison.verdict}\n"])


def _section(section: Section) -> str:
    body = "\n".join(part for block in section.blocks for part in _parts(block))
    return f"{section.title}\n" + "".join(f"{MARGIN}{line}".rstrip() + "\n" for line in body.splitlines())


def _parts(block: Block) -> Iterator[str]:
    if block.note:
        yield f"{block.note}\n"
    if block.table:
        yield text_table(block.table)
    if block.pairs:
        yield "".join(f"{term}: {text}\n" for term, text in block.pairs)
