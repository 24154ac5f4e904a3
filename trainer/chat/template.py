"""A chat template, and which part of what it writes the assistant says.

Most templates do not mark the assistant's part by `{% generation %}`. It is found by writing the conversation up to each
answer, as a model is asked for it, and up to its end: what the longer text has more is the answer. That takes a template which
writes the beginning of a conversation in the same way, whatever follows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainer.chat.messages import ASSISTANT, USER, Message
from trainer.common.errors import ConfigError, TokenizerError, brief, reason_of

MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")

TODAY = "strftime_now"
"""What a template calls to write the date."""

PROBE = [Message(USER, "What is it?"), Message(ASSISTANT, "This.")]
"""A conversation that every template can write."""

GIVE_ANOTHER = "give another one in data.chat_template"


class Written(NamedTuple):
    """A conversation as text, and from where to where the assistant speaks: each answer with the token that ends it."""

    text: str
    answers: list[tuple[int, int]]


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the tokenizer whose special tokens it may name; `end` is what it writes after an answer."""

    source: str
    tokenizer: Any
    end: str = ""

    def write(self, conversation: Sequence[Message]) -> Written:
        """Write a conversation. Raises `ValueError` if the template refuses it, or the answers cannot be told from it."""
        if MARKERS.search(self.source):
            return self._by_markers(conversation)
        whole, answers = self.text(conversation), []
        for number, message in enumerate(conversation):
            if message.role == ASSISTANT:
                answers.append(self._find_answer(conversation[:number], message, whole))
        return Written(whole, answers)

    def text(self, conversation: Sequence[Message], asks: bool = False) -> str:
        """What the template writes; if it `asks`, with what a model is to go on from."""
        try:
            text: str = self.tokenizer.apply_chat_template(
                [message._asdict() for message in conversation], chat_template=self.source, tokenize=False,
                add_generation_prompt=asks,
            )  # fmt: skip
        except Exception as error:  # Jinja's own, and whatever a template raises
            raise ValueError(f"the chat template refuses it: {brief(error)}") from error
        return text

    def _find_answer(self, before: Sequence[Message], answer: Message, whole: str) -> tuple[int, int]:
        asked, answered = self.text(before, asks=True), self.text([*before, answer])
        if not answered.startswith(asked) or not whole.startswith(answered):
            longer = "the answer" if whole.startswith(answered) else "what follows"
            raise ValueError(
                f"the chat template writes the beginning of a conversation otherwise once {longer} is there, so that it cannot "
                "be told what the assistant says; mark that in the template by {% generation %}, or " + GIVE_ANOTHER
            )
        said = answered[len(asked) :]
        header, found, _ = said.partition(answer.content.strip())
        if found and header.strip() and asked == self.text(before):
            raise ValueError(
                f"the chat template writes {header.strip()!r} before what the assistant says, but not where a model is asked "
                f"for it (add_generation_prompt); {GIVE_ANOTHER}"
            )
        return len(asked), len(asked) + len(said.rstrip())

    def _by_markers(self, conversation: Sequence[Message]) -> Written:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered: Any = render_jinja_template(
                conversations=[[message._asdict() for message in conversation]], chat_template=self.source,
                return_assistant_tokens_mask=True, **self.tokenizer.special_tokens_map,
            )  # fmt: skip
        except Exception as error:  # as above
            raise ValueError(f"the chat template refuses it: {brief(error)}") from error
        (text,), (marked,) = rendered
        return Written(text, [(start, start + len(text[start:end].rstrip())) for start, end in marked])


def load_template(given: str | None, tokenizer: Any, model: str) -> ChatTemplate:
    """The template that a job gives, else the tokenizer's own.

    Raises `ConfigError` if the given one cannot be read, `TokenizerError` if there is none, or it cannot be used.
    """
    template = ChatTemplate(_read(given) if given is not None else _own(tokenizer, model), tokenizer)
    whose = "data.chat_template" if given is not None else f"the chat template of {model!r}"
    if TODAY in template.source:
        raise TokenizerError(
            f"{whose} writes the date of today ({TODAY}), so that the same conversations would be other tokens tomorrow; give "
            "a copy in data.chat_template that writes a fixed one"
        )
    try:
        text, answers = template.write(PROBE)
    except ValueError as error:
        raise TokenizerError(f"{whose} cannot be used, with a question and an answer: {error}") from error
    if len(answers) != 1:
        raise TokenizerError(f"{whose} marks {len(answers)} answers in a conversation with one; {GIVE_ANOTHER}")
    said = text[slice(*answers[0])]
    _, found, end = said.partition(PROBE[1].content)
    if not found:
        raise TokenizerError(f"{whose} does not write what the assistant says: of {PROBE[1].content!r} it makes {said!r}")
    _require_end(end.strip(), tokenizer, whose)
    return ChatTemplate(template.source, tokenizer, end.strip())


def _read(given: str) -> str:
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data.chat_template {given!r} cannot be read: {reason_of(error)}; it is a Jinja template, or the path of one"
        ) from error


def _own(tokenizer: Any, model: str) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        several = isinstance(tokenizer.chat_template, dict)
        found = f"several chat templates ({', '.join(tokenizer.chat_template)})" if several else "no chat template"
        raise TokenizerError(f"the tokenizer of {model!r} has {found}; give one in data.chat_template") from error


def _require_end(end: str, tokenizer: Any, whose: str) -> None:
    """Raise `TokenizerError` unless what ends an answer is one token, at which a model stops."""
    ids = tokenizer.backend_tokenizer.encode(end, add_special_tokens=False).ids
    if len(ids) != 1:
        found = f"{end!r}, which is {len(ids)} tokens of this tokenizer" if end else "nothing"
        raise TokenizerError(
            f"{whose} writes {found} after what the assistant says; expected is one token, such as {{{{ eos_token }}}}, that a "
            f"model learns to stop with; {GIVE_ANOTHER}"
        )
