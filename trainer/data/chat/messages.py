"""Records of conversations: parsing, and checking that a chat template can render them; errors have locations."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any, NamedTuple, TypeVar

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError, brief
from trainer.common.stopping import check_stop
from trainer.config.chat import ConversationsConfig
from trainer.data.chat.rendering import ASSISTANT, SYSTEM, USER, Message
from trainer.data.splits import Part, SplitTexts, bad_records, look_at_columns, read_part
from trainer.data.tables import Reading

MESSAGES = "messages"
"""The name of the field of a conversation's texts, in whatever form its record is."""

COLUMNS = (MESSAGES, "prompt", "completion")
"""The fields of a record from which a conversation is read: `messages`, or the other two."""

TOOLS = "tools"
"""The field of a record that other programs give to the chat template beside the messages."""

NO_TOOLS: tuple[Any, ...] = (None, "", "[]", "null", [], {})

ROLES = (SYSTEM, USER, ASSISTANT)
FIELDS = ("role", "content")


def read_conversation(values: Sequence[Any], found: Sequence[str], answer: str = "completion") -> list[Message]:
    """The conversation of a record, given its values of `COLUMNS`; `found` are the names of all its fields, and
    `answer` is the record's name for the last of `COLUMNS`.

    Raises `ValueError` with the problem.
    """
    messages, prompt, completion = values
    if messages is not None and completion is not None:  # a `prompt` beside messages repeats their first turns
        raise ValueError(f"the record has both `messages` and a `{answer}`; keep one of them")
    if messages is None and prompt is None and completion is None:
        raise ValueError(
            f"`messages`, or `prompt` and `{answer}`, are missing; the record has {', '.join(found) or 'no field'}"
        )
    if messages is None:
        pair = [(USER, "prompt", prompt), (ASSISTANT, answer, completion)]
        return [Message(role, read_text(content, f"`{field}`")) for role, field, content in pair]
    read = read_messages(messages, MESSAGES)
    check_order([message.role for message in read])
    return read


def read_messages(value: Any, field: str) -> list[Message]:
    """The messages of a field. Raises `ValueError` with the problem of a bad one."""
    if not isinstance(value, list):
        raise ValueError(f"`{field}` is {_kind(value)}; expected a list of messages, each with role and content")
    return [_read_message(each, number) for number, each in enumerate(value, 1)]


def question_of(conversation: Sequence[Message]) -> bytes:
    """All messages before the first answer, as bytes; their hash decides which conversations are held out."""
    first = next(number for number, message in enumerate(conversation) if message.role == ASSISTANT)
    return b"\0".join(f"{message.role}\0{message.content}".encode() for message in conversation[:first])


def _refuse_tools(tools: Any) -> None:
    """Raise `ValueError` for tools: a model that learns without them is asked with them later."""
    if tools not in NO_TOOLS:
        raise ValueError(
            "the record has `tools`, which are not supported: the chat template would not render them; remove the "
            "field, or describe the tools in the system message as the template would"
        )


def _read_message(value: Any, number: int) -> Message:
    where = f"message {number}"
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_kind(value)}; expected an object with role and content")
    given = {name: each for name, each in value.items() if each is not None}  # in Parquet every record has every field
    if unknown := [name for name in given if name not in FIELDS]:
        raise ValueError(f"{where} has the unknown field {unknown[0]!r}; a message has role and content")
    role = given.get("role")
    if role not in ROLES:
        problem = "no role" if role is None else f"the role {role!r}"
        raise ValueError(f"{where} has {problem}; roles are {', '.join(ROLES)}")
    return Message(str(role), read_text(given.get("content"), f"the content of {where} ({role})"))


def read_text(value: Any, what: str) -> str:
    """A text that is not blank. Raises `ValueError` for anything else."""
    if value is None:
        raise ValueError(f"{what} is missing")
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_kind(value)}, not text")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not valid UTF-8: {brief(error)}") from error
    return value


def check_order(roles: Sequence[str]) -> None:
    """Raise `ValueError` unless user and assistant alternate, after at most one system message, and both occur."""
    if not roles:
        raise ValueError("`messages` is an empty list; expected at least a user's message and an assistant's answer")
    start = 1 if roles[0] == SYSTEM else 0
    for number, role in enumerate(roles[start:]):
        expected = ASSISTANT if number % 2 else USER
        if role != expected:
            raise ValueError(
                f"message {start + number + 1} has the role {role}, expected {expected}: after at most one system "
                f"message, user and assistant must alternate; the order is {', '.join(roles)}"
            )
    if ASSISTANT not in roles:
        raise ValueError(f"there is no assistant message, so nothing to learn; the roles are {', '.join(roles)}")


def _kind(value: Any) -> str:
    return {str: "text", dict: "an object", list: "a list", bool: "true or false"}.get(
        type(value), type(value).__name__
    )


ANSWERS = ("chosen", "rejected")


def read_pair(values: Sequence[Any], found: Sequence[str]) -> list[list[Message]]:
    """The two conversations of a record, the chosen one first. Raises `ValueError` with the problem."""
    prompt, messages, *answers = values
    if missing := [name for name, value in zip(ANSWERS, answers, strict=True) if value is None]:
        raise ValueError(f"`{missing[0]}` is missing; the record has {', '.join(found) or 'no field'}")
    name, given = (MESSAGES, messages) if prompt is None else ("prompt", prompt)
    ends = [_read_turns(value, name, ASSISTANT) for name, value in zip(ANSWERS, answers, strict=True)]
    begin = [] if given is None else _read_turns(given, name, USER)
    if all(end and end[0].role != ASSISTANT for end in ends):
        begin, ends = _divide(ends, begin, name)
    elif given is None:
        raise ValueError("`prompt` is missing: it is optional only if `chosen` and `rejected` are whole conversations")
    for name, end in zip(ANSWERS, ends, strict=True):
        if not any(message.role == ASSISTANT for message in end):
            raise ValueError(f"`{name}` holds no answer of the assistant")
    if ends[0] == ends[1]:
        raise ValueError("`chosen` and `rejected` are the same answer, so nothing can be learnt from them")
    prompt_messages = [message._replace(learnt=False) for message in begin]
    for end in ends:
        check_order([message.role for message in (*prompt_messages, *end)])
    return [[*prompt_messages, *end] for end in ends]


def _read_turns(value: Any, name: str, role: str) -> list[Message]:
    """A list of turns, or a text as one turn of a role."""
    return read_messages(value, name) if isinstance(value, list) else [Message(role, read_text(value, f"`{name}`"))]


def _divide(whole: list[list[Message]], begin: list[Message], name: str) -> tuple[list[Message], list[list[Message]]]:
    """The turns that two conversations share at their beginning, and the turns that follow in each; the shared turns
    must end with the prompt's turns if there is a prompt.
    """
    alike = takewhile(lambda turns: turns[0] == turns[1], zip(*whole, strict=False))
    shared = [turn for turn, _ in alike]
    if len(shared) == min(map(len, whole)) and shared[-1:] and shared[-1].role == ASSISTANT:
        shared.pop()  # one conversation is a prefix of the other: its last turn is an answer
    if not shared:
        raise ValueError("`chosen` and `rejected` share no first turn; expected the same prompt in both")
    if begin and shared[-len(begin) :] != begin:
        raise ValueError(f"`chosen` and `rejected` are whole conversations, but do not begin with the `{name}`")
    return shared, [each[len(shared) :] for each in whole]


Made = TypeVar("Made")


class Form(NamedTuple):
    """A form of records: what one is called, the columns to read, and a function that returns the conversations of a
    record, given its values and the names of all its fields.
    """

    name: str
    columns: Sequence[str]
    read: Callable[[Sequence[Any], Sequence[str]], list[list[Message]]]


CONVERSATION = Form("conversation", COLUMNS, lambda values, columns: [read_conversation(values, columns)])
"""`messages`, or a `prompt` and its `completion`."""

PAIR = Form("pair", ("prompt", MESSAGES, *ANSWERS), read_pair)
"""A prompt and two answers, in the forms that trl documents for preference data.

    {"prompt": "…", "chosen": "…", "rejected": "…"}
    {"prompt": [turns], "chosen": [turns], "rejected": [turns]}       or `messages` instead of `prompt`
    {"chosen": [turns], "rejected": [turns]}                          conversations that begin with the same prompt

Each gives two conversations, of which only the answers are learnt.
"""


def read_records(
    data: ConversationsConfig,
    parts: Sequence[Part],
    bad: BadRecords,
    make: Callable[[list[Message]], Made],
    most: int | None = None,
    form: Form = CONVERSATION,
) -> Iterator[tuple[int, list[list[Message]], list[Made]]]:
    """The conversations of a split's parts by record, each with the record's index and the results of `make`.

    A record is bad if its conversations cannot be read, or if `make` raises `ValueError`. `most` limits the records of
    each part. Raises `RecordError` for the first bad record that exceeds the limit of `bad`.
    """
    number, how = 0, Reading(data.source)
    for part in parts:
        columns, _, shared = look_at_columns(part, how)
        if shared and not set(form.columns) & set(columns):
            raise CorpusError(
                f"{part.name} has none of the columns {', '.join(form.columns)}; it has {', '.join(columns) or 'none'}"
            )
        for record in islice(read_part(part, how, (*form.columns, TOOLS)), most):
            check_stop()
            if record.wrong is not None:
                bad.add(record.wrong)
            else:
                # Of a record with its own fields all are given, of others only the requested columns.
                found = columns if shared else list(record.values)
                try:
                    _refuse_tools(record.values.get(TOOLS))
                    conversations = form.read([record.values.get(column) for column in form.columns], found)
                    made = [make(each) for each in conversations]
                except ValueError as problem:
                    bad.add(RecordError(f"{record.place()}: {problem}"))
                else:
                    yield number, conversations, made
            number += 1


def _texts_of(
    form: Form, data: ConversationsConfig, split: str, parts: Sequence[Part], field: str
) -> Iterator[tuple[int, int, str]]:
    bad = bad_records(data, split)
    for place, part in enumerate(parts):
        for number, conversations, _ in read_records(data, [part], bad, lambda conversation: None, form=form):
            first, *others = conversations  # which share their first turns
            messages = [*first, *(message for other in others for message in other if message not in first)]
            yield from ((place, number, message.content) for message in messages)


def texts_of(form: Form) -> SplitTexts:
    """How to read the texts of records of a form; a text that both conversations share is read once."""
    return SplitTexts(fields=lambda data: [MESSAGES], read=partial(_texts_of, form))


TEXTS = texts_of(CONVERSATION)
PAIR_TEXTS = texts_of(PAIR)
