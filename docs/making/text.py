"""Pieces of Markdown: paragraphs, cells of tables, anchors."""

import re


def paragraphs(text: str | None) -> list[str]:
    """Paragraphs, each followed by an empty line."""
    blocks = [" ".join(block.split()) for block in (text or "").split("\n\n")]
    return [line for block in blocks if block for line in (block, "")]


def cell(text: str | None) -> str:
    """Text in a cell of a table, in which nothing but `code` means anything."""
    line = " ".join((text or "").split()).replace("|", "\\|")
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(part if number % 2 else re.sub(r"([*_<>\[\]`])", r"\\\1", part) for number, part in enumerate(parts))


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts and the site make it."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")
