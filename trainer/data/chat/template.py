"""The chat template of a job or a tokenizer, tried out before it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from trainer.common.errors import ConfigError, TokenizerError, reason_of
from trainer.data.chat.messages import ASSISTANT, SYSTEM, USER, Message
from trainer.data.chat.renderer import Renderer
from trainer.data.chat.rendering import GIVE_ANOTHER, Refused, Written

PROBE = [Message(USER, "What is it?"), Message(ASSISTANT, "This.")]
"""A conversation that every template can write."""

PROBES = (
    PROBE,
    [Message(SYSTEM, "Be brief."), *PROBE],
    [*PROBE, Message(USER, "And that?"), Message(ASSISTANT, "That.")],
)
"""Conversations that are written twice, by two processes, to see that they become the same text."""

WITHOUT_DATE = "{% set strftime_now = not_defined +%}"
"""Before a template that transformers renders: has it write its own date, as where it was trained on, and not that of
today.
"""


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the process that renders it; `end` is what it writes after an answer."""

    source: str
    renderer: Renderer
    end: str = ""

    def write(self, conversation: Sequence[Message]) -> Written:
        """Write a conversation. Raises `ValueError` if the template refuses it, or the answers cannot be told from
        it.
        """
        return self.renderer.write(conversation)

    def text(self, conversation: Sequence[Message]) -> str:
        """What the template writes. Raises `ValueError` if it refuses."""
        return self.renderer.text(conversation)


def load_template(given: str | None, tokenizer: Any, model: str) -> ChatTemplate:
    """The template that a job gives, else the tokenizer's own.

    Raises `ConfigError` if the given one cannot be read, `TokenizerError` if there is none, or it cannot be used.
    """
    source = _read(given) if given is not None else _own(tokenizer, model)
    whose = "data.chat_template" if given is not None else f"the chat template of {model!r}"
    special = tokenizer.special_tokens_map
    renderer = Renderer(source, special)
    try:
        text, answers = renderer.write(PROBE)
    except Refused as error:
        raise TokenizerError(f"{whose} cannot be used, with a question and an answer: {error}") from error
    _require_same(renderer, Renderer(source, special, order=1), whose)
    if len(answers) != 1:
        raise TokenizerError(f"{whose} marks {len(answers)} answers in a conversation with one; {GIVE_ANOTHER}")
    said = text[slice(*answers[0])]
    _, found, end = said.partition(PROBE[1].content)
    if not found:
        raise TokenizerError(
            f"{whose} does not write what the assistant says: of {PROBE[1].content!r} it makes {said!r}"
        )
    _require_end(end.strip(), tokenizer, whose)
    return ChatTemplate(source, renderer, end.strip())


def bound_template(tokenizer: Any, model: str) -> None:
    """Have a tokenizer render a conversation only after a process with bounds has, for what renders by itself, as
    lm-eval does.

    What that refuses raises `jinja2.TemplateError`, as a template does. Raises `TokenizerError` if there is none.
    """
    source, apply = _own(tokenizer, model), tokenizer.apply_chat_template
    renderer = Renderer(source, tokenizer.special_tokens_map)

    def apply_bounded(
        conversation: Sequence[dict[str, str]], add_generation_prompt: bool = False, **options: Any
    ) -> Any:
        try:
            renderer.text([Message(each["role"], each["content"]) for each in conversation], add_generation_prompt)
        except Refused as error:
            raise TemplateError(str(error)) from error
        return apply(
            conversation, add_generation_prompt=add_generation_prompt, chat_template=WITHOUT_DATE + source, **options
        )  # fmt: skip

    tokenizer.apply_chat_template = apply_bounded


def _require_same(renderer: Renderer, other: Renderer, whose: str) -> None:
    """Raise `TokenizerError` unless another process writes the same of each probe, or refuses the same."""
    for probe in PROBES:
        first, second = (_tried(each, probe) for each in (renderer, other))
        if first != second:
            raise TokenizerError(
                f"{whose} writes the same conversation once as {first!r}, and once as {second!r}, so that what is "
                f"trained on would depend on chance; {GIVE_ANOTHER}"
            )
    other.close()


def _tried(renderer: Renderer, conversation: Sequence[Message]) -> str:
    try:
        return renderer.text(conversation, asks=True)
    except Refused as error:
        return str(error)


def _read(given: str) -> str:
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data.chat_template {given!r} cannot be read: {reason_of(error)}; it is a Jinja template, or the path of "
            "one"
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
            f"{whose} writes {found} after what the assistant says; expected is one token, such as "
            f"{{{{ eos_token }}}}, that a model learns to stop with; {GIVE_ANOTHER}"
        )
