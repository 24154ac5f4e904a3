"""Rendering of conversations by a chat template, and the ranges of the assistant's answers; free of heavy imports.

The text that a template writes before it first accesses a message, or checks whether there is one, is the same for
every conversation with the same messages before it. If the template accesses no message before its loop reaches it, and
its text after the last message depends on nothing kept from earlier messages, that text is also the same after every
prefix. So the text of each prefix is known without rendering each separately, which would take quadratic time.

Most templates do not mark the assistant's part with `{% generation %}`. It is found by rendering
the conversation up to each answer, as the prompt for a model, and including the answer: the difference is the answer.
This requires a template that renders the beginning of a conversation in the same way, whatever follows.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.ext import loopcontrols

from trainer.common.errors import brief
from trainer.data.chat.environment import Environment, Marks, Refused

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


class Message(NamedTuple):
    """A message; `learnt` is false for an assistant's message that is not predicted; such messages come first."""

    role: str
    content: str
    learnt: bool = True

    def written(self) -> dict[str, str]:
        """The message in the form that chat templates read."""
        return {"role": self.role, "content": self.content}


KEEPING = {"namespace", "cycler", "joiner"}
"""Template functions that keep state from one message to the next, and to the text after the last."""

COLLECTING = (nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock, nodes.Macro)
"""Nodes whose content is written later than it is rendered."""


class Ends(NamedTuple):
    """For each N, where the text of the first N messages ends in the whole text; and what follows such a prefix.

    `plain` follows it at the end of a conversation, `asking` as the prompt for an answer.
    """

    places: list[int]
    plain: str
    asking: str


def may_be_linear(template: nodes.Template) -> bool:
    """Whether a template keeps no state between messages, and uses only attributes of its loops.

    `Watched` and the attributes accessed at run time check the rest.
    """
    if any(name.name in KEEPING for name in template.find_all(nodes.Name)):
        return False
    attributes = {id(each.node) for each in template.find_all(nodes.Getattr)}
    if any(
        name.name == "loop" and name.ctx == "load" and id(name) not in attributes
        for name in template.find_all(nodes.Name)
    ):
        return False
    return not any(next(each.find_all(nodes.For), None) for each in template.find_all(COLLECTING))


class Watched(Sequence[Any]):
    """Messages that note how much had been written when each of them, and their end, was first accessed.

    `written` returns the amount written so far.
    """

    def __init__(self, messages: Sequence[Any], written: Callable[[], int]) -> None:
        self._messages, self._written = messages, written
        self._places: list[int] = []
        self._at: int | None = None
        """The position of the loop that began first."""
        self._looks_elsewhere = False

    def places(self) -> list[int] | None:
        """The amounts written before each message, and before their end, was accessed; None if unreliable.

        They are unreliable if the end was not accessed, or any message after it, or a message ahead of the loop.
        """
        return None if self._looks_elsewhere or not self._ended() else self._places

    def walk(self, start: int) -> Iterator[Any]:
        """Iterate over the messages from `start`, as a loop does."""
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
    """The messages from `start` on."""

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
"""The end of Python's default text of an object: its memory address."""

HALF = re.compile("[\ud800-\udfff]")
"""A lone UTF-16 surrogate: JSON can contain it, UTF-8 cannot."""

GIVE_ANOTHER = "set data.chat_template to another one"

FREE_CHARACTERS, CHARACTERS_A_MESSAGE, CHARACTERS_EACH = 2**20, 2**10, 8
"""The limit of a template's output: the base, and what is added for each message and for each of its characters."""


class Written(NamedTuple):
    """A conversation as text, and the start and end of each answer, including the token that ends it."""

    text: str
    answers: list[tuple[int, int]]


class Template:
    """A compiled template, and the special tokens that it may refer to; if `dated`, it may write today's date."""

    def __init__(self, source: str, special: Mapping[str, str], dated: bool = False) -> None:
        """Raises `jinja2.TemplateError` for an invalid template."""
        self._environment = Environment(dated, trim_blocks=True, lstrip_blocks=True, extensions=[Marks, loopcontrols])
        self._template, self._special = self._environment.from_string(source), special
        self._has_marks = MARKERS.search(source) is not None
        self._may_be_linear = may_be_linear(self._environment.parse(source))

    def text(self, conversation: Sequence[Message], asks: bool = False) -> str:
        """The rendered text; with `asks`, including the prompt for an answer. Raises `Refused`."""
        return self._write(conversation, [message.written() for message in conversation], asks)

    def write(self, conversation: Sequence[Message]) -> Written:
        """Render a conversation. Raises `Refused` also if the ranges of the answers cannot be found."""
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
            variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": asks}
            for block in self._template.generate({**self._special, **variables}):
                blocks.append(block)
                self._environment.written += len(block)
                if self._environment.written > most:
                    raise Refused(
                        f"the chat template writes more than {most:,} characters for a conversation of "
                        f"{sum(len(message.content) for message in conversation):,}; {GIVE_ANOTHER}"
                    )
        except (Refused, MemoryError):
            raise
        except Exception as error:  # Jinja's errors, and whatever a template raises
            raise Refused(f"the chat template refuses this conversation: {brief(error)}") from error
        text = "".join(blocks)
        if half := HALF.search(text):
            raise Refused(
                f"the rendered text contains {half[0]!r}, half of a surrogate pair, which cannot be tokenized"
            )
        given_places = {place for message in conversation for place in ADDRESS.findall(message.content)}
        if places := set(ADDRESS.findall(text)) - given_places:
            raise Refused(
                f"the chat template writes the memory address of an object, which differs in each run: {min(places)}"
            )
        return text

    def _find_ends(self, conversation: Sequence[Message], whole: str, numbers: Sequence[int]) -> Ends | None:
        """Where the text of each prefix of a conversation ends in the whole text; None if each must be rendered.

        The first and the last answer are rendered separately in any case, as a check.
        """
        if not self._may_be_linear or len(numbers) < 3:
            return None
        plain, asking = (self._watch(conversation, asks) for asks in (False, True))
        if plain is None or asking is None or plain[0] != whole or plain[1] != asking[1]:
            return None
        places = plain[1]
        ends = Ends(places, whole[places[-1] :], asking[0][places[-1] :])
        for number in (numbers[0], numbers[-1]):
            prompt, answered = self.text(conversation[:number], asks=True), self.text(conversation[: number + 1])
            if prompt != whole[: places[number]] + ends.asking or answered != whole[: places[number + 1]] + ends.plain:
                return None
        return ends

    def _watch(self, conversation: Sequence[Message], asks: bool) -> tuple[str, list[int]] | None:
        watched = Watched([message.written() for message in conversation], lambda: self._environment.written)
        try:
            text = self._write(conversation, watched, asks)
        except Refused:
            return None  # it needs a list of messages, or properties of the whole conversation
        places = watched.places()
        return None if places is None or self._environment.looked_ahead else (text, places)

    def _answer_by_itself(self, conversation: Sequence[Message], number: int, whole: str) -> tuple[int, int]:
        before = conversation[:number]
        prompt, answered = self.text(before, asks=True), self.text(conversation[: number + 1])
        return _find_answer(conversation[number], 0, prompt, answered, whole, lambda: self.text(before))


def _answer_by_ends(answer: Message, number: int, whole: str, ends: Ends) -> tuple[int, int]:
    start, end = ends.places[number], ends.places[number + 1]
    answered, later = whole[start:end] + ends.plain, whole[start : end + len(ends.plain)]
    return _find_answer(answer, start, ends.asking, answered, later, lambda: ends.plain)


def _find_answer(
    answer: Message, at: int, prompt: str, answered: str, whole: str, before: Callable[[], str]
) -> tuple[int, int]:
    """The start and end of an answer, including its end token, in the text that begins with `whole` at offset `at`.

    `prompt` is the text up to the prompt for the answer, `answered` includes the answer, and `before` returns the text
    before it without a prompt.
    """
    if not answered.startswith(prompt) or not whole.startswith(answered):
        longer = "the answer" if whole.startswith(answered) else "what follows"
        raise Refused(
            f"the chat template writes the beginning of a conversation differently once {longer} is there, so the "
            "assistant's part cannot be found; mark it in the template with {% generation %}, or " + GIVE_ANOTHER
        )
    rendered = answered[len(prompt) :]
    header, found, _ = rendered.partition(answer.content.strip())
    if found and header.strip() and prompt == before():
        raise Refused(
            f"the chat template writes {header.strip()!r} before what the assistant says, but not in the prompt for an "
            f"answer (add_generation_prompt); {GIVE_ANOTHER}"
        )
    start = at + len(prompt)
    return start, start + len(rendered.rstrip())


def _most_characters(conversation: Sequence[Message]) -> int:
    characters = sum(len(message.content) for message in conversation)
    return FREE_CHARACTERS + CHARACTERS_A_MESSAGE * len(conversation) + CHARACTERS_EACH * characters
