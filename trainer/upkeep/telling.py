"""How the commands of upkeep tell what they found in a store."""

from collections.abc import Sequence
from datetime import datetime

from trainer.common.formats import plural


def describe(what: str, size: int, modified: datetime, key: str) -> str:
    """A line on one thing: its kind, its bytes, when it was last written to, and its key."""
    return f"{what:<16}{size / 1e6:>12,.1f} MB  {modified:%Y-%m-%d %H:%M} UTC  {key}"


def sum_up(sizes: Sequence[int], removed: bool, noun: str, many: str | None = None, how: str = "--remove") -> str:
    """A line on all of them: their number, their bytes, and what became of them, or `how` they are removed."""
    total = f"{plural(len(sizes), noun, many)}, {sum(sizes) / 1e6:,.1f} MB"
    return f"{total}: removed" if removed else f"{total}{f'; {how} removes them' if sizes else ''}"
