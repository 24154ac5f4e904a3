"""The pages of the documentation, and the blocks of code in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of code: its language, its title, and its text."""

    page: str
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.title or self.text[:40]!r}"


def name_of(page: Path) -> str:
    """A page as its path in the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(language: str, page: Path | None = None) -> list[Block]:
    """The blocks of a language in one page, or in all."""
    return [block for each in ([page] if page else PAGES) for block in blocks_of(each) if block.language == language]


def without_code(page: Path) -> str:
    """A page's text without code blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", page.read_text(encoding="utf-8")))


def commands(page: Path | None = None) -> list[tuple[Block, str]]:
    """The lines of blocks without a language that begin with a command of the project."""
    return [
        (block, line) for block in blocks("", page) for line in block.text.splitlines() if line.startswith("headrace ")
    ]


def blocks_of(page: Path) -> Iterator[Block]:
    """All blocks of a page in order."""
    for language, title, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield Block(name_of(page), language, title, text)
