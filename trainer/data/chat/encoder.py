"""Conversations to token ids, by a chat template and the model's own tokenizer, with a mask of the assistant's tokens.

The ids equal those of `tokenizer.apply_chat_template`, with two exceptions: text that spells a special token stays
text, and an answer that would share its first token with the text before it is tokenized separately, as when a model
generates.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from trainer.common.errors import ConfigError
from trainer.config.chat import ConversationsConfig
from trainer.data.chat.rendering import ASSISTANT, Message
from trainer.data.chat.template import PROBE, Renderer, load_asking, load_template
from trainer.data.labelled.text_encoder import choose_padding, digest_saved, keep_settings
from trainer.models.pretrained import load_config, load_tokenizer, most_positions
from trainer.models.taken_tokenizer import save_flat
from trainer.models.tokenizer import UNWRITTEN, byte_lengths, text_reader

log = logging.getLogger(__name__)

LONGEST = 2048
"""The default of tokens per window, if the model has as many positions."""

STAND_IN = "\ue000{}\ue001"
"""A placeholder that no text contains: the template writes it where it would write the message."""

Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Ids of shape [T], and each token's start and end in a text, of shape [T, 2]."""


class ChatEncoding(NamedTuple):
    """A conversation: ids and the mask of the assistant's tokens, of shape [T], and whether its end was cut off.

    `unmarked`: answers that a template with marks does not mark, so they are not learnt. `answer_bytes` are the bytes
    of the answers' text that was not cut off, without the end of turn; `answer_token_bytes` are those that its tokens
    represent.
    """

    input_ids: NDArray[np.int32]
    answered: NDArray[np.bool_]
    truncated: bool
    unmarked: int
    answer_bytes: int
    answer_token_bytes: int


@dataclass(frozen=True)
class ChatReader:
    """A tokenizer and a chat template that read conversations.

    `special`: the spellings of special tokens and of those that end an answer, by id; text that spells them stays text.
    """

    tokenizer: Any
    template: Renderer
    special: dict[int, str]

    def ask(self, conversation: Sequence[Message]) -> list[int]:
        """The ids of a conversation with the prompt for an answer. Raises `ValueError` if they cannot be found."""
        found, _ = self._read(conversation, self.template.text(conversation, asks=True), [], asks=True)
        ids: list[int] = found.tolist()
        return ids

    def _read(self, conversation: Sequence[Message], text: str, starts: Sequence[int], asks: bool = False) -> Tokens:
        """The ids of a conversation's text and their offsets; `starts` are those of its answers."""
        if self._spells_special(conversation):
            return self._as_text(text, self._find_messages(conversation, text, asks), starts)
        return self._tokens(text, starts)

    @cached_property
    def _whole_offsets(self) -> Tokenizer:
        """The tokenizer without its post-processor: some post-processors remove blanks from offsets."""
        plain = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        plain.post_processor = None
        return plain

    @cached_property
    def _plain(self) -> tuple[Tokenizer, str]:
        """A tokenizer without special tokens, and the spelling of an extra token.

        The extra token is put before text that does not begin the conversation: some tokenizers treat the first text
        differently.
        """
        plain, before = text_reader(self._whole_offsets.to_str(), *self.special), UNWRITTEN.format("")
        plain.add_tokens([AddedToken(before, normalized=False)])
        return plain, before

    def _tokens(self, text: str, starts: Sequence[int], at: int = 0, plain: bool = False) -> Tokens:
        """The ids of a text and their offsets; no token spans the start of an answer.

        Offsets start at `at`. With `plain`, special tokens in the text are read as text. Raises `ValueError` if the
        tokenizer reads the parts differently from the whole.
        """
        ids, offsets = self._encode(text, at, plain)
        ends = np.maximum.accumulate(offsets[:, 1])
        # Some tokenizers omit spaces from offsets.
        begins = np.minimum(offsets[:, 0], np.concatenate([[at], ends[:-1]]))
        cuts = [start for start in starts if ((begins < start) & (offsets[:, 1] > start)).any()]
        if not cuts:
            return ids, offsets
        pieces = pairwise([at, *cuts, at + len(text)])
        parts = [self._encode(text[start - at : end - at], start, plain) for start, end in pieces]
        divided = np.concatenate([part for part, _ in parts])
        if self.tokenizer.backend_tokenizer.decode(divided, False) != self.tokenizer.backend_tokenizer.decode(
            ids, False
        ):
            raise ValueError(
                "an answer begins within a token of what the chat template writes before it, and this tokenizer reads "
                "it differently on its own; remove spaces where the answer begins, or where the template prompts for it"
            )
        return divided, np.concatenate([places for _, places in parts])

    def _encode(self, text: str, at: int = 0, plain: bool = False) -> Tokens:
        """The ids of a text that starts at `at` in another, and their offsets in that text."""
        reader, before = self._plain if plain else (self._whole_offsets, "")
        before = before if at else ""
        found = reader.encode(before + text, add_special_tokens=False)
        first, at = bool(before), at - len(before)
        ids, offsets = found.ids[first:], found.offsets[first:]
        return np.array(ids, dtype=np.int32), np.array(offsets, dtype=np.int64).reshape(-1, 2) + at

    def _spells_special(self, conversation: Sequence[Message]) -> bool:
        """Whether a message contains the spelling of a special token."""
        return any(spelling in message.content for message in conversation for spelling in self.special.values())

    def _as_text(self, text: str, messages: list[tuple[int, int]], starts: Sequence[int]) -> Tokens:
        """The same if messages spell special tokens: text between the template's special tokens is read as plain."""
        ids, offsets = self._encode(text)
        parts: list[Tokens] = []
        done = 0
        for place, (number, (start, end)) in enumerate(zip(ids.tolist(), offsets.tolist(), strict=True)):
            found = text[start:end].strip()  # some tokens include adjacent blanks
            at = text.find(found, start)
            if found != self.special.get(number) or any(
                first <= at and at + len(found) <= last for first, last in messages
            ):
                continue
            parts.append(self._tokens(text[done:start], starts, done, plain=True))
            parts.append((ids[place : place + 1], offsets[place : place + 1]))
            done = end
        parts.append(self._tokens(text[done:], starts, done, plain=True))
        return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([places for _, places in parts])

    def _find_messages(self, conversation: Sequence[Message], text: str, asks: bool) -> list[tuple[int, int]]:
        """The start and end of each message in the text: between what the template writes around stand-ins."""
        stand_ins = [message._replace(content=STAND_IN.format(number)) for number, message in enumerate(conversation)]
        around = self.template.text(stand_ins, asks)
        frame = []
        for stand_in in stand_ins:
            before, _, around = around.partition(stand_in.content)
            frame.append(before)
        for contents in ([each.content for each in conversation], [each.content.strip() for each in conversation]):
            if "".join(part for pair in zip(frame, contents, strict=True) for part in pair) + around == text:
                ends = np.cumsum(
                    [len(before) + len(each) for before, each in zip(frame, contents, strict=True)]
                ).tolist()
                return [(end - len(each), end) for end, each in zip(ends, contents, strict=True)]
        raise ValueError(
            "a message spells a special token of the tokenizer, and the chat template changes messages, so it cannot "
            "be distinguished from one that the template writes; change the spelling, or leave the conversation out"
        )


@dataclass(frozen=True)
class ChatEncoder(ChatReader):
    """A reader prepared for a job.

    `end`: what the template writes after an answer, `end_id`: its token; `context`: the most tokens; `vocab_size`: the
    greatest id + 1; `digest` identifies the files that `save` writes, including the template.
    """

    end: str
    context: int
    vocab_size: int
    end_id: int
    digest: str

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def save(self, folder: Path) -> None:
        """Write the files for `AutoTokenizer.from_pretrained`, including the template."""
        save_flat(self.tokenizer, folder)

    def encode(self, conversation: Sequence[Message]) -> ChatEncoding:
        """Encode a conversation, cut to `context`. Raises `ValueError` as `Renderer.write` does."""
        written = self.template.write(conversation)
        starts = [start for start, _ in written.answers]
        ids, offsets = self._read(conversation, written.text, starts)
        learnt = [message.learnt for message in conversation if message.role == ASSISTANT]
        unmarked = max(0, len(learnt) - len(written.answers))
        answers = written.answers if all(learnt) else _of_learnt(written.answers, learnt)
        answered = np.zeros(len(ids), dtype=bool)
        for start, end in answers:
            answered |= (offsets[:, 1] > start) & (offsets[:, 0] < end)
        truncated, ids, answered = len(ids) > self.context, ids[: self.context], answered[: self.context]
        end = int(offsets[: self.context, 1].max()) if truncated else len(written.text)
        texts = [written.text[start:stop].removesuffix(self.end)[: max(0, end - start)] for start, stop in answers]
        text_bytes, token_bytes = (
            len("".join(texts).encode()),
            int(self._lengths[ids[answered & (ids != self.end_id)]].sum()),
        )
        return ChatEncoding(ids, answered, truncated, unmarked, text_bytes, token_bytes)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """The bytes of text that each token id represents."""
        return byte_lengths(self.tokenizer.backend_tokenizer.to_str())


def _of_learnt(answers: list[tuple[int, int]], flags: list[bool]) -> list[tuple[int, int]]:
    """The ranges of the answers that are learnt. Raises `ValueError` if the ranges do not match the answers."""
    if len(answers) != len(flags):
        raise ValueError(
            f"the chat template marks {len(answers)} ranges for {len(flags)} answers, so those of the prompt cannot be "
            "distinguished from those that are learnt; mark each answer once"
        )
    return [answer for answer, learnt in zip(answers, flags, strict=True) if learnt]


def load_chat_encoder(model: str | Path, data: ConversationsConfig) -> ChatEncoder:
    """The tokenizer in a model's folder, with the job's chat template or its own.

    Raises `TokenizerError` if one of them cannot be loaded or used, `ConfigError` if the model has fewer positions than
    `data.context`.
    """
    name = str(model)
    config, tokenizer = load_config(name).get_text_config(), _find_all(load_tokenizer(name))
    backend = tokenizer.backend_tokenizer
    choose_padding(tokenizer, name)
    template, end = load_template(data.chat_template, tokenizer, name)
    (end_id,) = backend.encode(end, add_special_tokens=False).ids
    keep_settings(tokenizer, split_special_tokens=False, model_input_names=["input_ids", "attention_mask"])
    tokenizer.chat_template = template.source
    vocab_size = max(backend.get_vocab(True).values()) + 1
    digest = digest_saved(partial(save_flat, tokenizer))
    context = _resolve_context(data, config, name)
    special = _special(tokenizer, [end_id])
    return ChatEncoder(tokenizer, template, special, end, context, vocab_size, end_id, digest)


def warn_of_other_prompt(encoder: ChatEncoder) -> None:
    """Warn if a model learns an answer after other tokens than those of the prompt for one.

    Tokenizers like GPT-2's read two line feeds at the end of a text as one token, and before a word as two. A template
    with marks may write another prompt than it writes before an answer.
    """
    with suppress(ValueError):  # of an answer that cannot be tokenized on its own, which is told for each conversation
        prompt, learnt = encoder.ask(PROBE[:1]), encoder.encode(PROBE).input_ids.tolist()
        if learnt[: len(prompt)] != prompt[: len(learnt)]:
            at = min(place for place, (one, other) in enumerate(zip(prompt, learnt, strict=False)) if one != other)
            end, before = prompt[at:], learnt[at : len(prompt)]
            log.warning(
                "the prompt for an answer ends with %r (tokens %s) when a model is asked, but the answers it learns "
                "follow %r (tokens %s); expected the same: let the chat template write the same before an answer as in "
                "the prompt, ending with one line feed, without blanks, or with a special token",
                encoder.tokenizer.decode(end), end, encoder.tokenizer.decode(before), before,
            )  # fmt: skip


def load_chat_reader(tokenizer: Any, ends: Sequence[int], model: str) -> ChatReader:
    """A model's tokenizer and its own template, to ask it; `ends` are the ids at which it stops.

    Raises `TokenizerError` if there is no template.
    """
    template = load_asking(tokenizer, model)
    return ChatReader(_find_all(tokenizer), template, _special(tokenizer, ends))


def _find_all(tokenizer: Any) -> Any:
    """The tokenizer, such that it reads whole texts and finds the template's special tokens in them."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = False
    return tokenizer


def _special(tokenizer: Any, ends: Sequence[int]) -> dict[int, str]:
    """The spellings of a tokenizer's special tokens and of the tokens `ends`, by id."""
    added = tokenizer.added_tokens_decoder.items()
    return {number: token.content for number, token in added if token.special or number in ends}


def _resolve_context(data: ConversationsConfig, config: Any, name: str) -> int:
    positions = most_positions(config)
    if data.context is None:
        return min(LONGEST, positions)
    if data.context > positions:
        raise ConfigError(f"data.context is {data.context}, but the model {name!r} has {positions} positions")
    return data.context
