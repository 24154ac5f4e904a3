"""What is told of a run of any kind, in parts that the page, the model card and the gist show."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.common.tables import Pairs, Table
from trainer.registry.curves import Curve


class Tile(NamedTuple):
    """A key figure: what it is, the figure, and what to know about it."""

    label: str
    figure: str
    note: str


class Block(NamedTuple):
    """A note, and what it is about: a table, things told one at a time, or prompts with their continuations."""

    note: str = ""
    table: Table | None = None
    pairs: Pairs | None = None
    samples: tuple[tuple[str, str], ...] = ()


class Section(NamedTuple):
    """Blocks under a title."""

    title: str
    blocks: list[Block]


class Card(NamedTuple):
    """What only the model card says: the hub's name of the task, a tag, more front matter, what the model is, how to
    use it.

    `results` are those of its model-index; `summary` is the beginning of a sentence that goes on with "with headrace";
    `use` is Python.
    """

    task: str
    tag: str
    matter: dict[str, Any]
    results: list[dict[str, Any]]
    summary: str
    use: str


@dataclass(frozen=True)
class ReportContent:
    """All that a report says of a run, but for what is told of every run in the same way.

    `results` and `data` stand in the model card too, `samples` only on the page. The first table of `results` and that
    of `data` are in the gist.
    """

    verdict: str
    evaluated: str
    tiles: list[Tile]
    curves: list[Curve]
    results: list[Section]
    samples: list[Section]
    data: Section
    plan: Pairs
    model: Pairs
    checkpoints: Table
    card: Card


def first_table(sections: list[Section]) -> Table | None:
    """The first table in some sections."""
    return next((block.table for section in sections for block in section.blocks if block.table), None)
