"""Conversations read from files and data sets, each record checked, with its exact place in what is wrong."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trainer.chat.encoder import ChatEncoder, ChatEncoding
from trainer.chat.messages import COLUMNS, question_of, read_conversation
from trainer.common.errors import CorpusError
from trainer.common.stopping import check_stop
from trainer.config.chat import ChatDataConfig
from trainer.corpus.shards import is_held_out
from trainer.labelled.rows import Part, Row, open_table
from trainer.labelled.scan import bad_record
from trainer.labelled.sources import TRAIN, VALIDATION


@dataclass
class Counts:
    """What was counted of a split's records.

    `unanswered` lost every token of an answer when their end was cut off, and are left out. `unmarked` are answers that the
    template does not mark as such, so that they are not learnt.
    """

    examples: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    longest: int = 0
    truncated: int = 0
    unanswered: int = 0
    unmarked: int = 0
    bad_records: int = 0
    questions: set[bytes] = field(default_factory=set)

    def told(self) -> dict[str, int]:
        """The counts by name."""
        return {name: value for name, value in vars(self).items() if name != "questions"}


@dataclass(frozen=True)
class Encoded:
    """A conversation that is trained or measured on: its split, the record's number in its parts, and its tokens."""

    split: str
    id: str
    tokens: ChatEncoding


def read_encoded(
    data: ChatDataConfig, split: str, parts: Sequence[Part], cut: bool, encoder: ChatEncoder, counts: dict[str, Counts],
    most: int | None = None,
) -> Iterator[Encoded]:  # fmt: skip
    """The conversations of a split's parts, encoded; with `cut`, those that a hash of the question holds out are validation.

    `most`: records of each part that are looked at. Raises `RecordError` for the first bad one that may not be passed over.
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
                tokens = encoder.encode(conversation)
            except ValueError as problem:
                counts[split].bad_records += 1
                if counts[split].bad_records > data.max_bad_records:
                    raise bad_record(data, split, f"{part.name}: {table.unit} {row.number}", str(problem)) from problem
            else:
                question = question_of(conversation)
                held = cut and is_held_out(question, data.validation_fraction)
                found = Encoded(VALIDATION if held else split, str(number), tokens)
                if _count(counts[found.split], tokens, question):
                    yield found
            number += 1


def require_conversations(data: ChatDataConfig, counts: dict[str, Counts], cut: bool) -> None:
    """Raise `CorpusError` for a split with nothing in it."""
    for split, found in counts.items():
        if not found.examples:
            why = f"{found.bad_records} bad records, {found.unanswered} whose answers lie beyond data.context"
            held = f", and {data.validation_fraction:g} of {TRAIN} is held out by a hash" if cut and split == VALIDATION else ""
            raise CorpusError(
                f"data set {data.name!r}: the {split} split is empty ({why}{held}); check that this is the right data, or give "
                "validation data, a greater data.context or another validation_fraction"
            )


def duplicates_across(counts: dict[str, Counts]) -> int:
    """How many questions of the validation split are in train as well."""
    return len(counts[TRAIN].questions & counts[VALIDATION].questions)


def _values(row: Row, present: Sequence[str]) -> list[object]:
    if row.problem is not None:
        raise ValueError(row.problem)
    given = dict(zip(present, row.values, strict=True))
    return [given.get(column) for column in COLUMNS]


def _count(counts: Counts, tokens: ChatEncoding, question: bytes) -> bool:
    """Take a conversation into the counts; returns whether anything of an answer is left of it."""
    counts.truncated += tokens.truncated
    counts.unmarked += tokens.unmarked
    if not tokens.answered[1:].any():
        counts.unanswered += 1
        return False
    counts.examples += 1
    counts.tokens += len(tokens.input_ids)
    counts.answer_tokens += int(tokens.answered[1:].sum())
    counts.longest = max(counts.longest, len(tokens.input_ids))
    counts.questions.add(hashlib.blake2b(question, digest_size=8).digest())
    return True
