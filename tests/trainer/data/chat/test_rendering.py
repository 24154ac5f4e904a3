"""What templates write, and where answers stand in it: as transformers renders each beginning of a conversation by
itself.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.trainer.chats import CHATML, LLAMA2, MARKED
from trainer.common.errors import Preempted
from trainer.common.stopping import signal_handlers
from trainer.data.chat.environment import Refused
from trainer.data.chat.rendering import MARKERS, Message, Template, Written
from trainer.data.chat.template import Bounds, Renderer

# Chat templates as published models have them, and others that keep, collect or look ahead, so that care is needed.
SAID = "{{ '<|' + m.role[0] + '|>' + m.content + eos_token }}"
ASKS = "{% if add_generation_prompt %}{{ '<|a|>' }}{% endif %}"

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = \
'<|start_header_id|>' + \
message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{{- tools | tojson }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}\
{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

LINEAR = {
    "chatml": CHATML,
    "llama-3": LLAMA3,
    "llama-2": LLAMA2,
    "qwen": QWEN,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "by index": "{% for m in messages %}{{ '<|' ~ m.role[0] ~ '|>' ~ loop.index ~ m.content ~ eos_token }}{% endfor %}"
    + ASKS,
    "sees the message before": "{% for m in messages %}{{ (loop.previtem.role if loop.previtem else '-') + '>' if "
    "m.role == 'user' else '<|a|>' }}{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "always ends": "{% for m in messages %}SAYS{% endfor %}{{ '<|a|>' if add_generation_prompt else '' }}",
    "two loops": "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{% for m in messages %}SAYS"
    "{% endfor %}" + ASKS,
}
"""The time that these take grows with a conversation's length, but for `two loops`, which looks at all of it first."""

OTHERS = {
    "marked": MARKED,
    "looks ahead": "{% for m in messages %}SAYS"
    "{% if loop.last and add_generation_prompt %}{{ '<|a|>' }}{% endif %}{% endfor %}",
    "looks ahead in one turn": "{% set ms = messages[1:] if messages[0].role == 'system' else messages %}{% for m in "
    "ms %}{% if '1' in m.content and ms[loop.index0 + 1] is defined %}{% endif %}"
    "{{ '[I]' + m.content + '[/I]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "looks ahead by a slice": "{% for m in messages %}{% if '1' in m.content %}{% set next = messages[loop.index:] | "
    "first %}{% endif %}{{ '[I]' + m.content + '[/I]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "looks ahead by the loop": "{% for m in messages %}{% if '1' in m.content and loop.nextitem %}{% endif %}"
    "{{ '[I]' + m.content + '[/I]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "numbers backwards": "{% for m in messages %}{{ loop.revindex ~ m.content ~ eos_token }}{% endfor %}" + ASKS,
    "counts": "{{ messages | length }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "says how many at the end": "{% for m in messages %}SAYS{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|a|>' }}{% else %}{{ messages | length }}{% endif %}",
    "keeps the last": "{% set ns = namespace(last='') %}{% for m in messages %}SAYS{% set ns.last = m.content %}"
    "{% endfor %}{% if not add_generation_prompt %}{{ ns.last }}{% else %}{{ '<|a|>' }}"
    "{% endif %}",
    "keeps the last, but does not say it": "{% set ns = namespace(last='') %}{% for m in messages %}SAYS"
    "{% set ns.last = m.content %}{% endfor %}" + ASKS,
    "joins": "{% set sep = joiner('&') %}{% for m in messages %}{{ sep() + '<|' + m.role[0] + '|>' + m.content + "
    "eos_token }}{% endfor %}" + ASKS,
    "turns": "{% set turn = cycler('x', 'y') %}{% for m in messages %}{{ turn.next() + m.content + eos_token }}{% "
    "endfor %}{{ turn.current if add_generation_prompt else '' }}",
    "leaves out former answers": "{% for m in messages %}{{ '<|' + m.role[0] + '|>' }}{{ m.content if m.role == 'user' "
    "or loop.nextitem is not defined else '' }}{{ eos_token }}{% endfor %}" + ASKS,
    "collects": "{% set all %}{% for m in messages %}SAYS{% endfor %}{% endset %}{{ all | trim }}" + ASKS,
    "filters": "{% filter trim %}{% for m in messages %}SAYS{% endfor %}{% endfilter %}" + ASKS,
    "macro": "{% macro say(all) %}{% for m in all %}SAYS{% endfor %}{% endmacro %}{{ say(messages) }}" + ASKS,
    "consumes": "{% set said = messages | map(attribute='content') %}{% for m in messages %}{{ '<|' + m.role[0] + '|>' "
    "+ (said | first) + eos_token }}{% endfor %}" + ASKS,
    "json": "{{ messages | tojson }}" + ASKS,
    "prints all": "{{ messages }}" + ASKS,
    "adds": "{% for m in messages + [] %}SAYS{% endfor %}" + ASKS,
    "last": "{% for m in messages %}SAYS{% endfor %}{{ '<|a|>' if messages[-1].role == 'user' else '' }}",
    "stops": "{% for m in messages %}SAYS{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}" + ASKS,
    "asks within": "{% for m in messages %}{% if m.role == 'user' and add_generation_prompt %}{{ '?' }}{% endif %}SAYS"
    "{% endfor %}" + ASKS,
    "unasked header": "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}",
    "refuses the third": "{% for m in messages %}{{ raise_exception('no') if loop.index == 3 else '' }}"
    "{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "reversed": "{% for m in messages | reverse %}{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "in pairs": "{% for pair in messages | batch(2) %}{% for m in pair %}SAYS{% endfor %}{% endfor %}" + ASKS,
    "dict": "{% set names = dict(user='u', assistant='a', system='s') %}{% for m in messages %}{{ names[m.role] + "
    "m.content + eos_token }}{% endfor %}{{ 'a' if add_generation_prompt else '' }}",
}

for templates in (LINEAR, OTHERS):
    templates.update({name: source.replace("SAYS", SAID) for name, source in templates.items()})

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {**LINEAR, **OTHERS}


def conversations() -> Iterator[list[Message]]:
    """Of 1 to 7 answers, with a system message and without, some that end with a question, some of the same words."""
    for answers in (1, 2, 3, 4, 7):
        for said in ("{}", " {} \n", "same", "Größe {} 👩‍💻\n\n"):
            turns = [Message(role, said.format(number)) for number in range(answers) for role in ("user", "assistant")]
            yield turns
            yield [Message("system", "Be brief."), *turns]
            yield [*turns, Message("user", "And?")]


def rendered(source: str, conversation: Sequence[Message], asks: bool = False, marks: bool = False) -> Any:
    messages = [message._asdict() for message in conversation]
    given: dict[str, Any] = {"add_generation_prompt": asks, "return_assistant_tokens_mask": marks, **SPECIAL}
    try:
        return render_jinja_template([messages], chat_template=source, **given)
    except Exception as error:
        raise Refused(f"the chat template refuses this conversation: {error}") from error


def by_each_beginning(source: str, conversation: Sequence[Message]) -> Written:
    """The answers, found by rendering every beginning of the conversation by itself."""
    if MARKERS.search(source):
        (text,), (marked,) = rendered(source, conversation, marks=True)
        return Written(text, [(start, start + len(text[start:end].rstrip())) for start, end in marked])
    whole, answers = rendered(source, conversation)[0][0], []
    for number, message in enumerate(conversation):
        if message.role != "assistant":
            continue
        before = conversation[:number]
        asked, answered = rendered(source, before, asks=True)[0][0], rendered(source, [*before, message])[0][0]
        if not answered.startswith(asked) or not whole.startswith(answered):
            raise Refused("the chat template writes the beginning of a conversation differently")
        header, found, _ = answered[len(asked) :].partition(message.content.strip())
        if found and header.strip() and asked == rendered(source, before)[0][0]:
            raise Refused(f"the chat template writes {header.strip()!r} before what the assistant says")
        answers.append((len(asked), len(answered.rstrip()) if len(answered.rstrip()) > len(asked) else len(asked)))
    return Written(whole, answers)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_written_and_the_answers_in_it_are_those_of_each_beginning_by_itself(name: str) -> None:
    source = TEMPLATES[name]
    template, refused = Template(source, SPECIAL), 0
    for conversation in conversations():
        try:
            expected = by_each_beginning(source, conversation)
        except Refused as reason:
            refused += 1
            with pytest.raises(Refused) as found:
                template.write(conversation)
            assert str(found.value).startswith(str(reason))
        else:
            assert template.write(conversation) == expected
            assert template.text(conversation, asks=True) == rendered(source, conversation, asks=True)[0][0]
    assert name not in LINEAR or refused < 30


class Counting(Template):
    written = 0

    def _write(self, conversation: Sequence[Message], messages: Sequence[Any], asks: bool) -> str:
        text = super()._write(conversation, messages, asks)
        self.written += len(text)
        return text


@pytest.mark.parametrize("name", sorted(LINEAR.keys() - {"two loops"}))
def test_the_work_grows_with_the_length_of_a_conversation_and_not_with_its_square(name: str) -> None:
    written = []
    for turns in (50, 200):
        template = Counting(LINEAR[name], SPECIAL)
        template.write([Message(role, "some words") for _ in range(turns) for role in ("user", "assistant")])
        written.append(template.written)
    assert written[1] < 5 * written[0]


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

ASKED = [Message("user", "What?"), Message("assistant", "That.")]


@pytest.fixture
def renderers() -> Iterator[Callable[..., Renderer]]:
    started: list[Renderer] = []

    def start(source: str, **options: Any) -> Renderer:
        started.append(Renderer(source, SPECIAL, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (ENDLESS, "takes more than 1 second of CPU time for one conversation"),
        ("{{ 'a' * 2500000000 }}", "takes more than 256.0 MiB of memory"),
        ("{% for a in range(99999) %}{{ 'aaaaaaaa' * 1000 }}{% endfor %}", "writes more than 1,050,704 characters"),
    ],
)
def test_a_template_without_bound_is_ended_and_the_next_conversation_is_written(
    renderers: Callable[..., Renderer], source: str, problem: str
) -> None:
    """It is met in some conversations only: those are refused, as any other bad record is."""
    met = "{% if messages[0].content == 'What?' %}" + source + "{% endif %}" + LINEAR["chatml"]
    renderer = renderers(met, bounds=Bounds(seconds=1, memory=256 * 2**20))
    other = [Message("user", "Who?"), *ASKED[1:]]
    expected = Template(LINEAR["chatml"], SPECIAL).write(other)
    for _ in range(2):
        with pytest.raises(Refused, match=problem):
            renderer.write(ASKED)
        assert renderer.write(other) == expected


@pytest.mark.parametrize(
    "source", ["{% break %}", "{{ 10**5000 }}", "{% for a in 'ab' %}" * 25 + "{% endfor %}" * 25, "{% if %}"]
)
def test_a_template_that_cannot_be_compiled_is_refused(renderers: Callable[..., Renderer], source: str) -> None:
    with pytest.raises(Refused, match="the chat template cannot be read: "):
        renderers(source).write(ASKED)


def test_half_a_character_is_refused() -> None:
    """JSON may spell one, which no tokenizer takes."""
    halves = [Template("{{ '\\ud83d' }}" + LINEAR["chatml"], SPECIAL), Template(LINEAR["chatml"], SPECIAL)]
    for template, said in zip(halves, ("This.", "\udc00"), strict=True):
        with pytest.raises(Refused, match="half of a surrogate pair, which cannot be tokenized"):
            template.write([Message("user", "What?"), Message("assistant", said)])


def test_what_a_template_is_asked_to_write_ends_with_the_command(renderers: Callable[..., Renderer]) -> None:
    """A stop does not wait until the template has come to its bound."""
    renderer = renderers(ENDLESS)
    asking = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    with pytest.raises(Preempted), signal_handlers():
        asking.start()
        renderer.write(ASKED)


def test_sets_have_the_same_order_in_every_process(renderers: Callable[..., Renderer]) -> None:
    source = "{{ (dict.fromkeys('abcdefghijkl').keys() - ['a']) | join }}"
    assert len({renderers(source).text(ASKED) for _ in range(3)}) == 1
    assert renderers(source).text(ASKED) != renderers(source, order=1).text(ASKED)


def test_a_long_conversation_may_take_longer(renderers: Callable[..., Renderer]) -> None:
    """A template that says how long a conversation is, or keeps something, is written anew for each answer."""
    source = "{% set ns = namespace(said=0) %}" + LINEAR["chatml"]
    long = [Message(role, "some words") for _ in range(300) for role in ("user", "assistant")]
    bounds = Bounds(seconds=0.4)
    with pytest.raises(Refused, match="takes more than"):
        renderers(ENDLESS + source, bounds=bounds).write(ASKED)
    assert bounds.seconds_of(ASKED) < 0.5 < 1 < bounds.seconds_of(long) < 2
    assert len(renderers(source, bounds=bounds).write(long).answers) == 300


def test_files_in_the_current_folder_are_not_taken_for_modules(
    renderers: Callable[..., Renderer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("trainer", "resource", "jinja2"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    assert renderers(LINEAR["chatml"]).write(ASKED) == Template(LINEAR["chatml"], SPECIAL).write(ASKED)


def test_a_process_that_ends_by_an_error_of_its_own_is_not_told_as_memory(
    renderers: Callable[..., Renderer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jinja2.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Refused, match="the process that renders the chat template ended with status 1;"):
        renderers(LINEAR["chatml"]).write(ASKED)


def test_places_in_memory_that_messages_speak_of_are_written() -> None:
    conversation = [Message("user", "Is a <b"), Message("assistant", "It is at 0x7f001234abcd>.")]
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert Template(source, SPECIAL).text(conversation) == "Is a <bIt is at 0x7f001234abcd>."
    with pytest.raises(Refused, match="writes the memory address of an object, which differs in each run: at 0x"):
        Template(source + "{{ messages[0].get }}", SPECIAL).text(conversation)


class Interrupted:
    """A pipe during whose reading the user presses Ctrl-C."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def readline(self) -> bytes:
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipe, name)


def test_an_answer_that_nobody_read_is_not_taken_for_the_next(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers(LINEAR["chatml"])
    renderer.write(ASKED)
    process = renderer._process
    assert process is not None and process.stdout is not None
    process.stdout = Interrupted(process.stdout)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        renderer.write([Message("user", "one"), Message("assistant", "1")])
    other = [Message("user", "two"), Message("assistant", "2")]
    assert renderer.write(other) == Template(LINEAR["chatml"], SPECIAL).write(other)
