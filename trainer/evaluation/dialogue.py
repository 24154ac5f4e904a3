"""Chat with models in the terminal, and generate answers to conversations of an encoded set with `transformers`.

In the terminal, output is streamed. A model whose tokenizer has a chat template answers; any other continues the text.
"""

import io
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from transformers import PreTrainedModel, TextStreamer

from trainer.common.display import show
from trainer.common.errors import ConfigError
from trainer.data.chat.encoded import ChatSplit
from trainer.data.chat.encoder import ChatReader, load_chat_reader
from trainer.data.chat.rendering import Message
from trainer.data.encoded import tokenizer_paths
from trainer.evaluation.scoring import generate_each
from trainer.models.causal import load_model
from trainer.models.generation import continue_tokens, ends_of
from trainer.models.pretrained import (
    Checkpoint,
    continues_text,
    find_model,
    load_config,
    load_tokenizer,
    most_positions,
    require_one_meaning,
)
from trainer.models.weights import check_weights
from trainer.records.evaluations import Sample
from trainer.store.names import CHAMPION
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

Write = Callable[[str], object]
Turns = list[dict[str, str]]

ASK = "> "
NEW = "/new"
"""The command that starts a new conversation."""

GAP = "   "


class Sampling(NamedTuple):
    """Options of generation: with `temperature` 0 the likeliest token is taken each time."""

    system: str | None = None
    temperature: float = 0.0
    seed: int = 0
    new_tokens: int = 512


class Streamer(TextStreamer):
    """Writes the generated text, without the prompt and special tokens."""

    def __init__(self, tokenizer: Any, write: Write) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._write(text)


@dataclass
class ChatModel:
    """A model with its conversation so far.

    `reader` reads conversations if it has a chat template; `first` are the tokens put before any text that it
    continues.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    how: Sampling
    reader: ChatReader | None
    first: list[int]
    turns: Turns

    def begin(self) -> None:
        """Start a new conversation."""
        self.turns = [{"role": "system", "content": self.how.system}] if self.how.system else []

    def say(self, text: str, write: Write) -> str:
        """Stream and return the model's answer to a text, after the conversation so far.

        Raises `ConfigError` if the conversation leaves no position for an answer.
        """
        messages = [*self.turns, {"role": "user", "content": text}]
        ids = self._read(messages, text)
        if len(ids) >= most_positions(self.model.config):
            raise ConfigError(
                f"{self.name} has no positions left after {len(ids)} tokens of this conversation; start a new one with "
                f"{NEW}, or shorten the text"
            )
        tokens = continue_tokens(
            self.model, ids, self.how.new_tokens, temperature=self.how.temperature, seed=self.how.seed,
            streamer=Streamer(self.tokenizer, write),
        )  # fmt: skip
        answer: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if self.reader is not None:
            self.turns = [*messages, {"role": "assistant", "content": answer}]
        return answer

    def _read(self, messages: Turns, text: str) -> list[int]:
        """The token ids of the conversation, or of the text to continue."""
        if self.reader is None:
            read = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return [*self.first, *read] or [self.tokenizer.eos_token_id]
        try:
            return self.reader.ask([Message(turn["role"], turn["content"]) for turn in messages])
        except ValueError as error:
            raise ConfigError(f"{self.name} cannot be asked this: {error}") from error


def load_chat_model(store: Store, name: str, how: Sampling) -> ChatModel:
    """Load a model by a champion's name, a run, a checkpoint, a folder or a name of the hub.

    Raises `ArtifactError` if there is no such model or it is damaged, `ConfigError` if it does not continue text, or
    supports no system message, `TokenizerError` if it has several chat templates.
    """
    found = find_named(store, name)
    if not continues_text(load_config(found.folder).architectures if found.beside is None else None):
        raise ConfigError(f"{name} is not a language model that continues text, so it cannot chat")
    check_weights(found.beside or found.folder)
    model = load_model(found.folder, None, found.beside)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()  # type: ignore[arg-type]
    tokenizer = load_tokenizer(found.folder)
    first = _before_text(tokenizer) if found.key is None else []  # models of this store are trained without them
    reader = (
        load_chat_reader(tokenizer, ends_of(model.generation_config), name)
        if tokenizer.chat_template is not None
        else None
    )
    loaded = ChatModel(name, model, tokenizer, how, reader, first, [])
    if how.system and reader is None:
        raise ConfigError(f"{name} has no chat template: it continues text and supports no system message")
    if model.generation_config is not None and model.generation_config.pad_token_id is None:
        model.generation_config.pad_token_id = loaded.tokenizer.pad_token_id or loaded.tokenizer.eos_token_id
    loaded.begin()
    return loaded


def _before_text(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer puts before a text, without those after it, which would end the text."""
    both: list[list[int]] = [tokenizer("a", add_special_tokens=framed)["input_ids"] for framed in (True, False)]
    whole, text = both
    return whole[: next((start for start in range(len(whole)) if whole[start : start + len(text)] == text), 0)]


def find_named(store: Store, name: str) -> Checkpoint:
    """Find a model by any of its names; for a champion, its bare NAME is enough."""
    require_one_meaning(store, name)
    is_champion = "/" not in name and store.exists(f"models/{name}/{CHAMPION}")
    return find_model(store, f"models/{name}" if is_champion else name, hub=True)


def talk(models: Sequence[ChatModel], lines: Iterable[str], write: Write) -> None:
    """Answer each line with all models, until the lines end; an interrupt ends the answer, not the chat."""
    for line in lines:
        if line.strip() == NEW:
            for each in models:
                each.begin()
        elif line.strip():
            try:
                reply(models, line.rstrip("\n"), write)
            except KeyboardInterrupt:
                write("\n")
            except ConfigError as error:
                write(f"{error}\n")


def reply(models: Sequence[ChatModel], text: str, write: Write) -> None:
    """Answer a text: stream the answer of one model, or show those of several side by side."""
    if len(models) == 1:
        models[0].say(text, write)
        write("\n")
        return
    answers = [each.say(text, lambda part: None) for each in models]
    write(side_by_side([each.name for each in models], answers, shutil.get_terminal_size().columns))


def side_by_side(titles: Sequence[str], texts: Sequence[str], width: int) -> str:
    """Format texts in columns of equal width under their titles."""
    each = max(16, (width - len(GAP) * (len(texts) - 1)) // len(texts))

    def wrapped(text: str) -> list[str]:
        return [part for line in text.splitlines() for part in textwrap.wrap(line, each) or [""]]

    columns = [
        [title[:each], "-" * min(each, len(title)), *wrapped(text)] for title, text in zip(titles, texts, strict=True)
    ]
    rows = zip_longest(*columns, fillvalue="")
    return "".join(GAP.join(cell.ljust(each) for cell in row).rstrip() + "\n" for row in rows)


def piped() -> TextIO:
    """Standard input from a pipe; invalid bytes are replaced, and all line ends are recognised."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace", newline=None)
    return sys.stdin


def read_lines() -> Iterable[str]:
    """Yield the lines that a user types, until the end of the input or an interrupt, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from piped()
        return
    import readline  # noqa: F401 - enables line editing

    print(f"{NEW} starts a new conversation, Ctrl-C ends an answer, Ctrl-D exits.", file=sys.stderr)
    while True:
        try:
            yield input(ASK)
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return


def chat(url: str, names: Sequence[str], prompt: str | None, how: Sampling) -> None:
    """Chat with models of a store in this terminal, or answer one prompt."""
    models = [load_chat_model(Store(url), name, how) for name in names]
    if prompt is not None:
        reply(models, prompt, show)
    else:
        talk(models, read_lines(), show)


def spread_evenly(examples: int, most: int) -> list[int]:
    """At most `most` example numbers, evenly spaced from the first to the last of `examples`."""
    chosen: list[int] = np.linspace(0, examples - 1, min(most, examples)).round().astype(int).tolist()
    return chosen


def answer(
    model: PreTrainedModel,
    store: Store,
    encoded: str,
    split: ChatSplit,
    chosen: Sequence[int],
    new_tokens: int,
    runtime: Runtime,
) -> list[Sample]:
    """Generate the last answer of chosen conversations, with the likeliest token each time. Called by every rank."""
    tokenizer = load_tokenizer(str(tokenizer_paths(store, encoded)[0].parent))

    def text(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    def answered(example: int) -> Sample:
        ids, learnt = split.read(example)
        end = int(np.flatnonzero(learnt)[-1]) + 1
        start = end - int(np.argmin(learnt[:end][::-1]))  # start of the assistant's last turn
        prompt = ids[:start].tolist()  # not shortened, so fewer than `new_tokens` tokens may fit after it
        tokens = continue_tokens(model, prompt, new_tokens)
        return Sample(prompt=text(prompt), continuation=text(tokens), expected=text(ids[start:end].tolist()))

    return generate_each(model, chosen, answered, runtime)
