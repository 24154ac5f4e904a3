"""Chat templates in a separate process, which can be stopped: `python -m trainer.data.chat.template < REQUESTS`.

A template is a program that came with a model. If it loops forever or multiplies text without bound, only this process
ends, and the conversation is refused. The first line of the requests is the template and its memory limit, each further
line is a conversation. Each answer is one line. A template of a job or a tokenizer is tested before it is used.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from trainer.common.display import plural, size
from trainer.common.errors import ConfigError, TokenizerError, brief, reason_of
from trainer.common.stopping import SIGNALS, check_stop, on_stop
from trainer.data.chat.environment import Refused
from trainer.data.chat.rendering import ASSISTANT, GIVE_ANOTHER, SYSTEM, USER, Message, Template, Written

PROBE = [Message(USER, "What is it?"), Message(ASSISTANT, "This.")]
"""A conversation that every template can render."""

PROBES = (
    PROBE,
    [Message(SYSTEM, "Be brief."), *PROBE],
    [*PROBE, Message(USER, "And that?"), Message(ASSISTANT, "That.")],
)
"""Conversations that two processes render, to check that the texts are equal."""

WITHOUT_DATE = "{% set strftime_now = not_defined +%}"
"""Prepended to a template that transformers renders: makes it write its own date, as in training, not today's."""


class Bounds(NamedTuple):
    """The limits of a template: CPU seconds for a short conversation, and bytes of memory."""

    seconds: float = 20.0
    memory: int = 2 * 2**30

    def seconds_of(self, conversation: Sequence[Message]) -> float:
        """The limit for a conversation: grows with its number of messages and their characters."""
        characters = sum(len(message.content) for message in conversation)
        return self.seconds * (1 + len(conversation) / MESSAGES + characters / CHARACTERS)


MESSAGES, CHARACTERS = 200, 500_000
BOUNDS = Bounds()


class Renderer:
    """A template in a process that starts with the first conversation, and again after one that has ended it.

    `order` is the seed of Python's hashes: sets iterate in the same order for the same number. A `dated` template may
    write today's date.
    """

    def __init__(
        self, source: str, special: Mapping[str, str], bounds: Bounds = BOUNDS, order: int = 0, dated: bool = False
    ) -> None:
        self.source = source
        self._setup = {"source": source, "special": dict(special), "dated": dated, "memory": bounds.memory}
        self._bounds, self._order = bounds, order
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def text(self, conversation: Sequence[Message], asks: bool = False) -> str:
        """The rendered text; with `asks`, including the prompt for an answer. Raises `Refused`."""
        return str(self._ask(conversation, asks=asks)["text"])

    def write(self, conversation: Sequence[Message]) -> Written:
        """A conversation as text, with the positions of the answers. Raises `Refused`, also if these are unknown."""
        found = self._ask(conversation)
        return Written(found["text"], [(start, end) for start, end in found["answers"]])

    def close(self) -> None:
        """End the process."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _ask(self, conversation: Sequence[Message], **options: Any) -> dict[str, Any]:
        process, seconds = self._process or self._start(), self._bounds.seconds_of(conversation)
        assert process.stdin and process.stdout
        with on_stop(process.kill):
            try:
                process.stdin.write(_line({"conversation": conversation, "seconds": seconds, **options}))
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            except BaseException:  # an answer that nobody has read would be taken for the next one
                self.close()
                raise
        if not answer:
            status = process.wait()
            self.close()
            check_stop()
            raise Refused(self._describe_end(status, seconds))
        found: dict[str, Any] = json.loads(answer)
        if refused := found.get("refused"):
            raise Refused(refused)
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer.data.chat.template"],  # -P: import nothing from the current folder
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(self._order)},
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, process)
        assert process.stdin
        process.stdin.write(_line(self._setup))
        return process

    def _describe_end(self, status: int, seconds: float) -> str:
        if status >= 0:
            return f"the process that renders the chat template ended with status {status}; see its output above"
        if status == -signal.SIGPROF:
            took = f"takes more than {plural(int(seconds), 'second')} of CPU time"
        else:
            took = (
                f"ended the process that renders it (status {status}), which may use {size(self._bounds.memory)} of "
                "memory"
            )
        return f"the chat template {took} for one conversation; {GIVE_ANOTHER}"


def load_template(given: str | None, tokenizer: Any, model: str) -> tuple[Renderer, str]:
    """The job's template, else the tokenizer's own, and the end token that it writes after an answer.

    Raises `ConfigError` if the job's cannot be read, `TokenizerError` if there is none, or it cannot be used.
    """
    source = _read(given) if given is not None else _own(tokenizer, model)
    whose = "data.chat_template" if given is not None else f"the chat template of {model!r}"
    special = tokenizer.special_tokens_map
    renderer = Renderer(source, special)
    try:
        text, answers = renderer.write(PROBE)
    except Refused as error:
        raise TokenizerError(f"{whose} cannot render a question and an answer: {error}") from error
    _require_same(renderer, Renderer(source, special, order=1), whose)
    if len(answers) != 1:
        raise TokenizerError(f"{whose} marks {len(answers)} answers in a conversation with one; {GIVE_ANOTHER}")
    rendered = text[slice(*answers[0])]
    _, found, end = rendered.partition(PROBE[1].content)
    if not found:
        raise TokenizerError(
            f"{whose} does not write what the assistant says: for {PROBE[1].content!r} it writes {rendered!r}"
        )
    _require_end(end.strip(), tokenizer, whose)
    return renderer, end.strip()


def load_asking(tokenizer: Any, model: str) -> Renderer:
    """A tokenizer's own template, to ask its model as in training; one that cannot be used there, because it has no
    date of its own, writes today's. Raises `TokenizerError` if there is no template.
    """
    source, special = _own(tokenizer, model), tokenizer.special_tokens_map
    plain, dated = Renderer(source, special), Renderer(source, special, dated=True)
    question = PROBE[:1]
    for messages in (question, [Message(SYSTEM, "Be brief."), *question]):
        if not _asks(plain, messages) and _asks(dated, messages):
            return dated
    return plain


def _asks(renderer: Renderer, conversation: Sequence[Message]) -> bool:
    """Whether a template renders a conversation with the prompt for an answer."""
    try:
        renderer.text(conversation, asks=True)
    except Refused:
        return False
    return True


def bound_template(tokenizer: Any, model: str) -> None:
    """Make a tokenizer render a conversation only after a process with limits has; for callers such as lm-eval that
    render without limits.

    Refusals raise `jinja2.TemplateError`, as in a template. Raises `TokenizerError` if there is no template.
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
    """Raise `TokenizerError` unless another process writes the same text for each probe, or refuses it equally."""
    for probe in PROBES:
        first, second = (_tried(each, probe) for each in (renderer, other))
        if first != second:
            raise TokenizerError(
                f"{whose} writes the same conversation once as {first!r} and once as {second!r}, so training data "
                f"would be random; {GIVE_ANOTHER}"
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
            f"data.chat_template {given!r} cannot be read: {reason_of(error)}; expected a Jinja template, or the path "
            "of one"
        ) from error


def _own(tokenizer: Any, model: str) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        several = isinstance(tokenizer.chat_template, dict)
        found = f"several chat templates ({', '.join(tokenizer.chat_template)})" if several else "no chat template"
        raise TokenizerError(f"the tokenizer of {model!r} has {found}; set data.chat_template") from error


def _require_end(end: str, tokenizer: Any, whose: str) -> None:
    """Raise `TokenizerError` unless an answer ends with one token, at which a model stops."""
    ids = tokenizer.backend_tokenizer.encode(end, add_special_tokens=False).ids
    if len(ids) != 1:
        found = f"{end!r}, which is {len(ids)} tokens of this tokenizer" if end else "nothing"
        raise TokenizerError(
            f"{whose} writes {found} after what the assistant says; expected one token, such as {{{{ eos_token }}}}, "
            f"that a model learns to stop with; {GIVE_ANOTHER}"
        )


def main() -> int:
    """Answer requests until the input ends."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # for the parent process, which may have to finish
    setup = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    template: Template | None = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # its signal ends the process
        try:
            template = template or Template(setup["source"], setup["special"], setup["dated"])
            answer = _line(_answer(template, request))
        except MemoryError:
            answer = _line(
                {"refused": f"the chat template takes more than {size(setup['memory'])} of memory; {GIVE_ANOTHER}"}
            )
        except Refused as error:
            answer = _line({"refused": str(error)})
        except Exception as error:  # Jinja's errors, and Python's for a template that cannot be compiled
            answer = _line({"refused": f"the chat template cannot be read: {brief(error)}"})
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    return 0


def _answer(template: Template, request: dict[str, Any]) -> dict[str, Any]:
    conversation = [Message(*each) for each in request["conversation"]]
    if "asks" in request:
        return {"text": template.text(conversation, request["asks"])}
    return template.write(conversation)._asdict()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


if __name__ == "__main__":
    sys.exit(main())
