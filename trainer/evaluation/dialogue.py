"""What a model says, to a person and to conversations of an encoded set. `transformers` generates it.

To a person it is shown as it comes: a model whose tokenizer has a chat template answers; any other one continues the
text that it is given.
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
from jinja2 import TemplateError
from transformers import PreTrainedModel, TextStreamer

from trainer.common.errors import ConfigError, brief
from trainer.common.stopping import check_stop
from trainer.data.chat.encoded import ChatSplit
from trainer.data.encoded import tokenizer_paths
from trainer.models.causal import load_model, most_positions
from trainer.models.generation import continue_tokens
from trainer.models.pretrained import (
    Checkpoint,
    continues_text,
    find_model,
    load_config,
    load_tokenizer,
    require_one_meaning,
)
from trainer.models.weights import check_weights
from trainer.records.evaluations import Sample
from trainer.store.names import CHAMPION
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded

Write = Callable[[str], object]
Turns = list[dict[str, str]]

ASK = "> "
NEW = "/new"
"""What begins the conversation anew."""

GAP = "   "


class Sampling(NamedTuple):
    """How a model chooses its words: `temperature` 0 takes the likeliest each time."""

    system: str | None = None
    temperature: float = 0.0
    seed: int = 0
    new_tokens: int = 512


class Streamer(TextStreamer):
    """Writes what is generated, without the prompt and special tokens."""

    def __init__(self, tokenizer: Any, write: Write) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._write(text)


@dataclass
class ChatModel:
    """A model that is talked with, and what was said so far. `first` are tokens that it reads before any text that it
    continues.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    how: Sampling
    first: list[int]
    turns: Turns

    @property
    def answers(self) -> bool:
        """Whether it has a chat template; else it continues text."""
        return self.tokenizer.chat_template is not None

    def begin(self) -> None:
        """Forget what was said."""
        self.turns = [{"role": "system", "content": self.how.system}] if self.how.system else []

    def say(self, text: str, write: Write) -> str:
        """What the model says to a text, after what was said so far; it is written as it comes.

        Raises `ConfigError` if no token fits behind that.
        """
        asked = [*self.turns, {"role": "user", "content": text}]
        ids = self._read(asked, text)
        if len(ids) >= most_positions(self.model.config):
            raise ConfigError(
                f"{self.name} has no room behind {len(ids)} tokens of this conversation; begin anew with {NEW}"
            )
        tokens = continue_tokens(
            self.model, ids, self.how.new_tokens, temperature=self.how.temperature, seed=self.how.seed,
            streamer=Streamer(self.tokenizer, write),
        )  # fmt: skip
        said: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if self.answers:
            self.turns = [*asked, {"role": "assistant", "content": said}]
        return said

    def _read(self, asked: Turns, text: str) -> list[int]:
        """The tokens of what was said."""
        if not self.answers:
            read = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return [*self.first, *read] or [self.tokenizer.eos_token_id]
        try:
            read = self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)
        except TemplateError as error:
            raise ConfigError(f"the chat template of {self.name} does not take this: {brief(error)}") from error
        ids: list[int] = read["input_ids"]
        return ids


def load_chat_model(store: Store, name: str, how: Sampling) -> ChatModel:
    """A champion's name, a run, a checkpoint, a folder or a name of the hub, made ready to be talked with.

    Raises `ArtifactError` if there is no such model or it is damaged, `ConfigError` if it does not continue text, or
    takes no system message.
    """
    found = find_named(store, name)
    if not continues_text(load_config(found.folder).architectures if found.beside is None else None):
        raise ConfigError(f"{name} is no language model that continues text, so that it cannot be talked with")
    check_weights(found.beside or found.folder)
    model = load_model(found.folder, None, found.beside)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()  # type: ignore[arg-type]
    tokenizer = load_tokenizer(found.folder)
    first = _before_text(tokenizer) if found.key is None else []  # those of this store learnt from text alone
    loaded = ChatModel(name, model, tokenizer, how, first, [])
    if how.system and not loaded.answers:
        raise ConfigError(f"{name} has no chat template: it continues text, and takes no system message")
    if model.generation_config is not None and model.generation_config.pad_token_id is None:
        model.generation_config.pad_token_id = loaded.tokenizer.pad_token_id or loaded.tokenizer.eos_token_id
    loaded.begin()
    return loaded


def _before_text(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer puts before a text. What it puts behind one would have a model begin another."""
    both: list[list[int]] = [tokenizer("a", add_special_tokens=framed)["input_ids"] for framed in (True, False)]
    whole, text = both
    return whole[: next((start for start in range(len(whole)) if whole[start : start + len(text)] == text), 0)]


def find_named(store: Store, name: str) -> Checkpoint:
    """A model by any of its names; a champion's, too, without the folder of champions before it."""
    require_one_meaning(store, name)
    is_champion = "/" not in name and store.exists(f"models/{name}/{CHAMPION}")
    return find_model(store, f"models/{name}" if is_champion else name, hub=True)


def talk(models: Sequence[ChatModel], lines: Iterable[str], write: Write) -> None:
    """Have models answer one line after another, until there are no more. An interrupt ends an answer, not the talk."""
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
    """Have one model answer a text, as it comes, or several, side by side when all have."""
    if len(models) == 1:
        models[0].say(text, write)
        write("\n")
        return
    said = [each.say(text, lambda part: None) for each in models]
    write(side_by_side([each.name for each in models], said, shutil.get_terminal_size().columns))


def side_by_side(titles: Sequence[str], texts: Sequence[str], width: int) -> str:
    """Texts in columns of equal width under their titles."""
    each = max(16, (width - len(GAP) * (len(texts) - 1)) // len(texts))

    def wrapped(text: str) -> list[str]:
        return [part for line in text.splitlines() for part in textwrap.wrap(line, each) or [""]]

    columns = [
        [title[:each], "-" * min(each, len(title)), *wrapped(text)] for title, text in zip(titles, texts, strict=True)
    ]
    rows = zip_longest(*columns, fillvalue="")
    return "".join(GAP.join(cell.ljust(each) for cell in row).rstrip() + "\n" for row in rows)


def piped() -> TextIO:
    """What is piped in: bytes that are no text have a mark in their place, and lines end as in any other file."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace", newline=None)
    return sys.stdin


def read_lines() -> Iterable[str]:
    """What a person types, line by line, until the end of the input or an interrupt; of a pipe, its lines."""
    if not sys.stdin.isatty():
        yield from piped()
        return
    import readline  # noqa: F401 - lines can be edited

    print(f"{NEW} begins anew, Ctrl-C ends an answer, Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            yield input(ASK)
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return


def chat(url: str, names: Sequence[str], prompt: str | None, how: Sampling) -> None:
    """Talk with models of a store in this terminal, or have them answer one prompt."""
    models = [load_chat_model(Store(url), name, how) for name in names]

    def write(text: str) -> None:
        print(text, end="", flush=True)

    if prompt is not None:
        reply(models, prompt, write)
    else:
        talk(models, read_lines(), write)


def spread_evenly(examples: int, most: int) -> list[int]:
    """The numbers of `most` examples of so many, evenly spread, from the first to the last."""
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
    """Have a model give the last answer of chosen conversations of a split, the likeliest token each time. Called by
    every rank.

    The first one does it; with a model that is divided among them, all of them do, and what the first one has counts.
    """
    tokenizer = load_tokenizer(str(tokenizer_paths(store, encoded)[0].parent))

    def give(check: Callable[[], None]) -> list[Sample]:
        return [_answer(model, tokenizer, split, each, new_tokens, check) for each in chosen]

    if not is_sharded(model):
        return runtime.on_first(lambda: give(check_stop))
    samples = give(runtime.check_stop)
    return runtime.on_first(lambda: samples)


def _answer(
    model: PreTrainedModel, tokenizer: Any, split: ChatSplit, example: int, new_tokens: int, check: Callable[[], None]
) -> Sample:
    check()
    ids, answered = split.read(example)
    end = int(np.flatnonzero(answered)[-1]) + 1
    start = end - int(np.argmin(answered[:end][::-1]))  # of the last stretch of tokens that the assistant says
    asked = ids[:start].tolist()  # all of it, though fewer tokens than `new_tokens` may fit behind it
    said = continue_tokens(model, asked, new_tokens, together=is_sharded(model))

    def text(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    return Sample(
        prompt=text(asked),
        continuation=text(said),
        expected=text(ids[start:end].tolist()),
    )
