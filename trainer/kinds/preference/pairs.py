"""Records of pairs: a prompt and two answers, in the forms that trl documents for preference data.

    {"prompt": "…", "chosen": "…", "rejected": "…"}
    {"prompt": [turns], "chosen": [turns], "rejected": [turns]}       `messages` may stand for `prompt`
    {"chosen": [turns], "rejected": [turns]}                          conversations that begin with the same prompt

Each is two conversations, of which the answers alone are learnt. Free of heavy imports: curation reads them too.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from trainer.data.chat.messages import (
    ASSISTANT,
    MESSAGES,
    USER,
    Form,
    Message,
    check_order,
    read_messages,
    read_text,
    texts_of,
)

ANSWERS = ("chosen", "rejected")


def read_pair(values: Sequence[Any], found: Sequence[str]) -> list[list[Message]]:
    """The two conversations of a record, the chosen one first. Raises `ValueError` that says what is wrong with it."""
    prompt, messages, *answers = values
    if missing := [name for name, value in zip(ANSWERS, answers, strict=True) if value is None]:
        raise ValueError(f"`{missing[0]}` is missing; the record has {', '.join(found) or 'no field'}")
    name, given = (MESSAGES, messages) if prompt is None else ("prompt", prompt)
    ends = [_read_turns(value, name, ASSISTANT) for name, value in zip(ANSWERS, answers, strict=True)]
    begin = [] if given is None else _read_turns(given, name, USER)
    if all(end and end[0].role != ASSISTANT for end in ends):
        begin, ends = _divide(ends, begin, name)
    elif given is None:
        raise ValueError(
            "`prompt` is missing: it may be left out where `chosen` and `rejected` are whole conversations"
        )
    for name, end in zip(ANSWERS, ends, strict=True):
        if not any(message.role == ASSISTANT for message in end):
            raise ValueError(f"`{name}` holds no answer of the assistant")
    if ends[0] == ends[1]:
        raise ValueError("`chosen` and `rejected` are the same answer, of which nothing can be learnt")
    asked = [message._replace(learnt=False) for message in begin]
    for end in ends:
        check_order([message.role for message in (*asked, *end)])
    return [[*asked, *end] for end in ends]


def _read_turns(value: Any, name: str, role: str) -> list[Message]:
    """Turns as they are, or a text as the turn of a role."""
    return read_messages(value, name) if isinstance(value, list) else [Message(role, read_text(value, f"`{name}`"))]


def _divide(whole: list[list[Message]], begin: list[Message], name: str) -> tuple[list[Message], list[list[Message]]]:
    """The turns that two conversations both begin with, of which the last are those of a prompt, if there is one; and
    those that follow in each.
    """
    alike = takewhile(lambda turns: turns[0] == turns[1], zip(*whole, strict=False))
    shared = [turn for turn, _ in alike]
    if len(shared) == min(map(len, whole)) and shared[-1:] and shared[-1].role == ASSISTANT:
        shared.pop()  # the whole of one of them: its last turn is an answer
    if not shared:
        raise ValueError(
            "`chosen` and `rejected` begin with no turn that is the same; expected is the same prompt in both"
        )
    if begin and shared[-len(begin) :] != begin:
        raise ValueError(f"`chosen` and `rejected` are whole conversations, which do not begin with the `{name}`")
    return shared, [each[len(shared) :] for each in whole]


PAIR = Form(("prompt", MESSAGES, *ANSWERS), read_pair)

TEXTS = texts_of(PAIR)
