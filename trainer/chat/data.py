"""Conversations encoded, counted, and held out by a hash of their question."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.chat.encoder import ChatEncoder, ChatEncoding
from trainer.chat.messages import question_of
from trainer.chat.records import Counts, read_records
from trainer.common.errors import CorpusError
from trainer.config.chat import ChatDataConfig
from trainer.corpus.shards import is_held_out
from trainer.labelled.rows import Part
from trainer.labelled.sources import TRAIN, VALIDATION


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
    for number, conversation, tokens in read_records(data, parts, counts[split].bad, encoder.encode, most):
        question = question_of(conversation)
        held = cut and is_held_out(question, data.validation_fraction)
        found = Encoded(VALIDATION if held else split, str(number), tokens)
        if _count(counts[found.split], tokens, question):
            yield found


def require_conversations(data: ChatDataConfig, counts: dict[str, Counts], cut: bool) -> None:
    """Raise `CorpusError` for a split with nothing in it."""
    for split, found in counts.items():
        if not found.examples:
            why = f"{found.bad.count} bad records, {found.unanswered} whose answers lie beyond data.context"
            held = f", and {data.validation_fraction:g} of {TRAIN} is held out by a hash" if cut and split == VALIDATION else ""
            raise CorpusError(
                f"data set {data.name!r}: the {split} split is empty ({why}{held}); check that this is the right data, or give "
                "validation data, a greater data.context or another validation_fraction"
            )


def duplicates_across(counts: dict[str, Counts]) -> int:
    """How many questions of the validation split are in train as well."""
    return len(counts[TRAIN].questions & counts[VALIDATION].questions)


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
    counts.answer_bytes += tokens.answer_bytes
    counts.answer_token_bytes += tokens.answer_token_bytes
    counts.longest = max(counts.longest, len(tokens.input_ids))
    counts.questions.add(hashlib.blake2b(question, digest_size=8).digest())
    return True
