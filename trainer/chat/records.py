"""Records of conversations read from files and data sets, each checked, with its exact place in what is wrong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainer.chat.messages import COLUMNS, Message, read_conversation
from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError
from trainer.common.stopping import check_stop
from trainer.config.chat import ChatDataConfig
from trainer.labelled.rows import Part, Row, open_table

Made = TypeVar("Made")


@dataclass
class Counts:
    """What was counted of a split's records; `bad` are those that were skipped.

    `unanswered` lost every token of an answer when their end was cut off, and are left out. `unmarked` are answers that the
    template does not mark as such, so that they are not learnt.
    """

    bad: BadRecords
    examples: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    answer_bytes: int = 0
    answer_token_bytes: int = 0
    longest: int = 0
    truncated: int = 0
    unanswered: int = 0
    unmarked: int = 0
    questions: set[bytes] = field(default_factory=set)

    def told(self) -> dict[str, Any]:
        """The counts by name, as a manifest tells them."""
        return {name: value for name, value in vars(self).items() if name not in ("questions", "bad")} | self.bad.told()


def read_records(
    data: ChatDataConfig, parts: Sequence[Part], bad: BadRecords, make: Callable[[list[Message]], Made],
    most: int | None = None,
) -> Iterator[tuple[int, list[Message], Made]]:  # fmt: skip
    """The conversations of a split's parts, each with its record's number, from 0, and what is made of it.

    A record is bad of which no conversation can be read or made, for which `make` raises `ValueError`. `most`: records of each
    part that are looked at. Raises `RecordError` for the first that is too many for `bad`.
    """
    number = 0
    for part in parts:
        table = open_table(part, data)
        present = [column for column in COLUMNS if column in table.columns or (data.source == "jsonl" and part.loaded is None)]
        if not present:
            there = ", ".join(table.columns) or "none"
            raise CorpusError(f"{part.name} has neither a column `messages` nor `prompt` and `completion`; it has {there}")
        for taken, row in enumerate(table.rows(present)):
            if taken == most:
                break
            check_stop()
            try:
                conversation = read_conversation(_values(row, present), table.columns)
                made = make(conversation)
            except ValueError as problem:
                bad.add(RecordError(f"{part.name}: {table.unit} {row.number}: {problem}"))
            else:
                yield number, conversation, made
            number += 1


def _values(row: Row, present: Sequence[str]) -> list[object]:
    if row.problem is not None:
        raise ValueError(row.problem)
    given = dict(zip(present, row.values, strict=True))
    return [given.get(column) for column in COLUMNS]
