"""What a chat template writes of a conversation, and which part of that the assistant says; free of heavy imports.

What a template has written before it first looks at a message, or whether there is one, it writes of every conversation
that begins in the same way. If it looks at none before its loop comes to it, and what it writes after the last one
depends on nothing that it met before, that is the same after every beginning too. So the text of each beginning is
known, without writing each by itself, which takes time that grows with the square of their number.

The environment is that of `transformers.utils.chat_template_utils`, but for what would make the same conversation
another text another time. Most templates do not mark the assistant's part by `{% generation %}`. It is found by writing
the conversation up to each answer, as a model is asked for it, and up to its end: what the longer text has more is the
answer. That takes a template which writes the beginning of a conversation in the same way, whatever follows.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from trainer.common.errors import brief

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


class Message(NamedTuple):
    """What somebody says; `learnt`: whether that is predicted, of what the assistant says. What is not comes first."""

    role: str
    content: str
    learnt: bool = True

    def written(self) -> dict[str, str]:
        """As a chat template is given it."""
        return {"role": self.role, "content": self.content}


KEEPING = {"namespace", "cycler", "joiner"}
"""What keeps something from one message to the next, and to what is written after the last."""

OF_ONE_MESSAGE = {"index", "index0", "first", "previtem", "cycle", "changed", "depth", "depth0"}
"""What a loop tells without looking further than the message that it is at."""

COLLECTING = (nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock, nodes.Macro)
"""What is written within these is written later than it is made."""


class Ends(NamedTuple):
    """Up to where the text of the whole is that of its first N messages, for each N; and what follows such a beginning.

    `plain` follows it where a conversation ends, `asking` where a model is to go on.
    """

    places: list[int]
    plain: str
    asking: str


def may_be_linear(template: nodes.Template) -> bool:
    """Whether nothing in a template keeps what it met, or takes a loop for more than its attributes.

    Then `Watched`, and which attributes are looked at, tell the rest.
    """
    if any(name.name in KEEPING for name in template.find_all(nodes.Name)):
        return False
    told = {id(each.node) for each in template.find_all(nodes.Getattr)}
    if any(
        name.name == "loop" and name.ctx == "load" and id(name) not in told for name in template.find_all(nodes.Name)
    ):
        return False
    return not any(next(each.find_all(nodes.For), None) for each in template.find_all(COLLECTING))


class Watched(Sequence[Any]):
    """Messages that note how much had been written when each of them was first looked at, and when their end was.

    `written` says how much that is now.
    """

    def __init__(self, messages: Sequence[Any], written: Callable[[], int]) -> None:
        self._messages, self._written = messages, written
        self._places: list[int] = []
        self._at: int | None = None
        """Where the loop is that was the first to begin."""
        self._looks_elsewhere = False

    def places(self) -> list[int] | None:
        """How much was written before each message, and before their end, was looked at; None if that tells too little.

        That is so if the end was not looked at, or any of them after it, or one that the loop had not come to.
        """
        return None if self._looks_elsewhere or not self._ended() else self._places

    def walk(self, start: int) -> Iterator[Any]:
        """The messages from one on, as a loop takes them."""
        leads = self._at is None
        for place in count(start):
            if leads:
                self._at = place
            try:
                message = self[place]
            except IndexError:
                return
            yield message

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and (place.stop, place.step) == (None, None) and (place.start or 0) >= 0:
            return _Rest(self, place.start or 0)
        self._look(place if isinstance(place, int) and place >= 0 else len(self._messages))
        return self._messages[place]

    def __iter__(self) -> Iterator[Any]:
        return self.walk(0)

    def __len__(self) -> int:
        self._look(len(self._messages))
        return len(self._messages)

    def __bool__(self) -> bool:
        self._look(0)
        return bool(self._messages)

    def _look(self, place: int) -> None:
        self._looks_elsewhere |= self._ended() or (self._at is not None and place > self._at)
        while len(self._places) <= min(place, len(self._messages)):
            self._places.append(self._written())

    def _ended(self) -> bool:
        return len(self._places) > len(self._messages)


class _Rest(Sequence[Any]):
    """The messages from one on."""

    def __init__(self, watched: Watched, start: int) -> None:
        self._watched, self._start = watched, start

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and place >= 0:
            return self._watched[self._start + place]
        return list(self)[place]

    def __iter__(self) -> Iterator[Any]:
        return self._watched.walk(self._start)

    def __len__(self) -> int:
        return max(0, len(self._watched) - self._start)


MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")

ADDRESS = re.compile(r"at 0x[0-9a-fA-F]{6,}>")
"""How Python ends the text of an object that has none of its own: by its place in memory."""

HALF = re.compile("[\ud800-\udfff]")
"""What JSON may spell by itself, and no text in UTF-8 can hold: one of the two codes of a character in UTF-16."""

CHANGING = {
    "strftime_now": "writes the date of today (strftime_now)", "lipsum": "writes random text (lipsum)",
    "random": "takes something at random (the filter `random`)",
}  # fmt: skip
"""What would make the same conversation another text another time, by its name in templates."""

WHY_FIXED = (
    "so that the same conversation would be other tokens another time; give a copy in data.chat_template that writes "
    "something fixed there"
)

NO_DATE = jinja2.Undefined(hint=f"it {CHANGING['strftime_now']}, {WHY_FIXED}")
"""What `strftime_now` is: a template that asks whether it is defined has a date of its own to write instead."""

GIVE_ANOTHER = "give another one in data.chat_template"

FREE_CHARACTERS, CHARACTERS_A_MESSAGE, CHARACTERS_EACH = 2**20, 2**10, 8
"""What a template may write: so many characters in any case, for each message, and for each character of one."""


class Written(NamedTuple):
    """A conversation as text, and from where to where the assistant speaks: each answer with the token that ends it."""

    text: str
    answers: list[tuple[int, int]]


class Refused(ValueError):
    """A template cannot be used for a conversation; the message says why."""


class Template:
    """A template, compiled, and the special tokens that it may name."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """Raises `jinja2.TemplateError` if it is none."""
        self._environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Marks, loopcontrols])
        self._template, self._special = self._environment.from_string(source), special
        self._has_marks = MARKERS.search(source) is not None
        self._may_be_linear = may_be_linear(self._environment.parse(source))

    def text(self, conversation: Sequence[Message], asks: bool = False) -> str:
        """What the template writes; if it `asks`, with what a model is to go on from. Raises `Refused`."""
        return self._write(conversation, [message.written() for message in conversation], asks)

    def write(self, conversation: Sequence[Message]) -> Written:
        """Write a conversation. Raises `Refused` also if the answers cannot be told from what is written."""
        whole = self.text(conversation)
        if self._has_marks:
            marks = self._environment.marks
            return Written(whole, [(start, start + len(whole[start:end].rstrip())) for start, end in marks])
        numbers = [number for number, message in enumerate(conversation) if message.role == ASSISTANT]
        if ends := self._find_ends(conversation, whole, numbers):
            return Written(whole, [_answer_by_ends(conversation[number], number, whole, ends) for number in numbers])
        return Written(whole, [self._answer_by_itself(conversation, number, whole) for number in numbers])

    def _write(self, conversation: Sequence[Message], messages: Sequence[Any], asks: bool) -> str:
        blocks, most = self._environment.begin(), _most_characters(conversation)
        try:
            given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": asks}
            for block in self._template.generate({**self._special, **given}):
                blocks.append(block)
                self._environment.written += len(block)
                if self._environment.written > most:
                    raise Refused(
                        f"the chat template writes more than {most:,} characters of a conversation of "
                        f"{sum(len(message.content) for message in conversation):,}; {GIVE_ANOTHER}"
                    )
        except (Refused, MemoryError):
            raise
        except Exception as error:  # Jinja's own, and whatever a template raises
            raise Refused(f"the chat template refuses it: {brief(error)}") from error
        text = "".join(blocks)
        if half := HALF.search(text):
            raise Refused(
                f"with the chat template it holds {half[0]!r}, half of a character, which cannot be tokenized"
            )
        given_places = {place for message in conversation for place in ADDRESS.findall(message.content)}
        if places := set(ADDRESS.findall(text)) - given_places:
            raise Refused(
                f"the chat template writes where an object is in memory, which differs each time: {min(places)}"
            )
        return text

    def _find_ends(self, conversation: Sequence[Message], whole: str, numbers: Sequence[int]) -> Ends | None:
        """Where the text of each beginning of a conversation ends in that of the whole; None if that has to be tried
        out.

        The first and the last answer are tried out in any case.
        """
        if not self._may_be_linear or len(numbers) < 3:
            return None
        plain, asking = (self._watch(conversation, asks) for asks in (False, True))
        if plain is None or asking is None or plain[0] != whole or plain[1] != asking[1]:
            return None
        places = plain[1]
        ends = Ends(places, whole[places[-1] :], asking[0][places[-1] :])
        for number in (numbers[0], numbers[-1]):
            asked, answered = self.text(conversation[:number], asks=True), self.text(conversation[: number + 1])
            if asked != whole[: places[number]] + ends.asking or answered != whole[: places[number + 1]] + ends.plain:
                return None
        return ends

    def _watch(self, conversation: Sequence[Message], asks: bool) -> tuple[str, list[int]] | None:
        watched = Watched([message.written() for message in conversation], lambda: self._environment.written)
        try:
            text = self._write(conversation, watched, asks)
        except Refused:
            return None  # it takes messages for a list, or speaks of what only a whole conversation has
        places = watched.places()
        return None if places is None or self._environment.looked_ahead else (text, places)

    def _answer_by_itself(self, conversation: Sequence[Message], number: int, whole: str) -> tuple[int, int]:
        before = conversation[:number]
        asked, answered = self.text(before, asks=True), self.text(conversation[: number + 1])
        return _find_answer(conversation[number], 0, asked, answered, whole, lambda: self.text(before))


def _answer_by_ends(answer: Message, number: int, whole: str, ends: Ends) -> tuple[int, int]:
    start, end = ends.places[number], ends.places[number + 1]
    answered, later = whole[start:end] + ends.plain, whole[start : end + len(ends.plain)]
    return _find_answer(answer, start, ends.asking, answered, later, lambda: ends.plain)


def _find_answer(
    answer: Message, at: int, asked: str, answered: str, whole: str, before: Callable[[], str]
) -> tuple[int, int]:
    """From where to where an answer stands, with what ends it, in a text of which `whole` begins at some place.

    `asked` is what stands there where a model is asked for the answer, `answered` with it, and `before` what comes
    before it where no model is asked.
    """
    if not answered.startswith(asked) or not whole.startswith(answered):
        longer = "the answer" if whole.startswith(answered) else "what follows"
        raise Refused(
            f"the chat template writes the beginning of a conversation otherwise once {longer} is there, so that it "
            "cannot be told what the assistant says; mark that in the template by {% generation %}, or " + GIVE_ANOTHER
        )
    said = answered[len(asked) :]
    header, found, _ = said.partition(answer.content.strip())
    if found and header.strip() and asked == before():
        raise Refused(
            f"the chat template writes {header.strip()!r} before what the assistant says, but not where a model is "
            f"asked for it (add_generation_prompt); {GIVE_ANOTHER}"
        )
    start = at + len(asked)
    return start, start + len(said.rstrip())


def _most_characters(conversation: Sequence[Message]) -> int:
    given = sum(len(message.content) for message in conversation)
    return FREE_CHARACTERS + CHARACTERS_A_MESSAGE * len(conversation) + CHARACTERS_EACH * given


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of transformers, without chance; it counts what is written, and where marks stand in that.

    `looked_ahead`: whether a loop was asked for what is behind the message that it is at.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.written, self.marks, self.looked_ahead = 0, list[tuple[int, int]](), False
        self.filters |= {"tojson": _tojson, "random": _refusing("random")}
        self.globals |= {"raise_exception": _raise, "dict": _Dict(), "namespace": _Namespace}
        self.globals |= {"strftime_now": NO_DATE, "lipsum": _refusing("lipsum")}

    def begin(self) -> list[str]:
        """Count from 0 again; returns what is written, to be filled."""
        self.written, self.marks, self.looked_ahead = 0, [], False
        return []

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.looked_ahead |= isinstance(obj, LoopContext) and attribute not in OF_ONE_MESSAGE
        return super().getattr(obj, attribute)


class _Marks(Extension):
    """`{% generation %} … {% endgeneration %}` around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        said, environment = caller(), self.environment
        assert isinstance(environment, _Environment)
        environment.marks.append((environment.written, environment.written + len(said)))
        return said


class _Dict:
    """`dict` in templates, without its other attributes."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        return dict.fromkeys(*given)


class _Namespace(Namespace):
    """`namespace` in templates: no attribute of it begins with an underscore."""

    def __init__(*given: Any, **named: Any) -> None:  # a template may name an attribute `self`
        attributes = dict(*given[1:], **named)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(given[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace has no attribute {name!r}: it may not begin with an underscore"
        )


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*given: Any, **named: Any) -> NoReturn:
        raise Refused(f"the chat template {CHANGING[name]}, {WHY_FIXED}")

    return refuse
