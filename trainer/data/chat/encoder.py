"""Conversations to token ids, by a chat template and the model's own tokenizer, with the tokens that the assistant
says.

The ids are those of `tokenizer.apply_chat_template`, but for text that spells a special token, which stays text, and
for an answer whose beginning would share a token with what stands before it: that is read as it is when a model is
asked.
"""

from collections.abc import Sequence
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
from trainer.data.chat.template import Renderer, load_template
from trainer.data.labelled.text_encoder import choose_padding, digest_saved, keep_settings
from trainer.models.pretrained import load_config, load_tokenizer
from trainer.models.taken_tokenizer import save_flat
from trainer.models.tokenizer import UNWRITTEN, byte_lengths, text_reader

LONGEST = 2048
"""Tokens a window if nothing is said, and the model has as many positions."""

STAND_IN = "\ue000{}\ue001"
"""A message that no text holds: where the template puts it, it puts the message."""

Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Ids of shape [T], and from where to where in a text each stands, of shape [T, 2]."""


class ChatEncoding(NamedTuple):
    """A conversation: ids and which of them the assistant says, of shape [T], and whether its end was cut off.

    `unmarked`: answers that a template with marks does not mark, so that nothing of them is learnt. `answer_bytes` are
    those of the text of the answers, without what ends a turn, as far as it was not cut off; its tokens stand for
    `answer_token_bytes`.
    """

    input_ids: NDArray[np.int32]
    answered: NDArray[np.bool_]
    truncated: bool
    unmarked: int
    answer_bytes: int
    answer_token_bytes: int


@dataclass(frozen=True)
class ChatEncoder:
    """A tokenizer and a chat template made ready for a job.

    `end`: what the template writes after an answer, `end_id`: that token; `context`: tokens at most; `vocab_size`: one
    more than the greatest id; `special`: the spellings of special tokens and of the end, by id; `digest` names the
    files that `save` writes, the template among them.
    """

    tokenizer: Any
    template: Renderer
    end: str
    context: int
    vocab_size: int
    end_id: int
    special: dict[int, str]
    digest: str

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def save(self, folder: Path) -> None:
        """Write the files that `AutoTokenizer.from_pretrained` reads, with the template."""
        save_flat(self.tokenizer, folder)

    def encode(self, conversation: Sequence[Message]) -> ChatEncoding:
        """A conversation, cut to `context`. Raises `ValueError` as `Renderer.write` does."""
        written = self.template.write(conversation)
        starts = [start for start, _ in written.answers]
        if self._spells_special(conversation):
            ids, offsets = self._as_text(written.text, self._find_messages(conversation, written.text), starts)
        else:
            ids, offsets = self._tokens(written.text, starts)
        given = [message.learnt for message in conversation if message.role == ASSISTANT]
        unmarked = max(0, len(given) - len(written.answers))
        answers = written.answers if all(given) else _of_learnt(written.answers, given)
        answered = np.zeros(len(ids), dtype=bool)
        for start, end in answers:
            answered |= (offsets[:, 1] > start) & (offsets[:, 0] < end)
        truncated, ids, answered = len(ids) > self.context, ids[: self.context], answered[: self.context]
        end = int(offsets[: self.context, 1].max()) if truncated else len(written.text)
        said = [written.text[start:stop].removesuffix(self.end)[: max(0, end - start)] for start, stop in answers]
        text_bytes, token_bytes = (
            len("".join(said).encode()),
            int(self._lengths[ids[answered & (ids != self.end_id)]].sum()),
        )
        return ChatEncoding(ids, answered, truncated, unmarked, text_bytes, token_bytes)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """The bytes of text that each token id stands for."""
        return byte_lengths(self.tokenizer.backend_tokenizer.to_str())

    @cached_property
    def _whole_offsets(self) -> Tokenizer:
        """The tokenizer without what it does to tokens at last: some leave blanks out of offsets there."""
        plain = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        plain.post_processor = None
        return plain

    @cached_property
    def _plain(self) -> tuple[Tokenizer, str]:
        """The same for which no text is a special token, and the spelling of a token of its own.

        That stands before text that is not the first of a conversation: some tokenizers read the first otherwise.
        """
        plain, before = text_reader(self._whole_offsets.to_str(), self.end_id), UNWRITTEN.format("")
        plain.add_tokens([AddedToken(before, normalized=False)])
        return plain, before

    def _tokens(self, text: str, starts: Sequence[int], at: int = 0, plain: bool = False) -> Tokens:
        """The ids of a text, and from where to where in it each stands; none stands on both sides of an answer's start.

        The text may stand at a place of another, as all places then do; special tokens may be `plain` text in it.
        Raises `ValueError` if the tokenizer does not read the parts as it reads the whole.
        """
        ids, offsets = self._encode(text, at, plain)
        ends = np.maximum.accumulate(offsets[:, 1])
        # Some tokenizers leave spaces out of offsets.
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
                "it otherwise by itself; leave out spaces where the answer begins, or where the template asks for it"
            )
        return divided, np.concatenate([places for _, places in parts])

    def _encode(self, text: str, at: int = 0, plain: bool = False) -> Tokens:
        """The ids of a text that stands at a place of another, and from where to where each stands there."""
        reader, before = self._plain if plain else (self._whole_offsets, "")
        before = before if at else ""
        found = reader.encode(before + text, add_special_tokens=False)
        first, at = bool(before), at - len(before)
        ids, offsets = found.ids[first:], found.offsets[first:]
        return np.array(ids, dtype=np.int32), np.array(offsets, dtype=np.int64).reshape(-1, 2) + at

    def _spells_special(self, conversation: Sequence[Message]) -> bool:
        """Whether the spelling of a special token stands in a message."""
        return any(spelling in message.content for message in conversation for spelling in self.special.values())

    def _as_text(self, text: str, messages: list[tuple[int, int]], starts: Sequence[int]) -> Tokens:
        """The same where messages spell special tokens: what is between those of the template is read as plain text."""
        ids, offsets = self._encode(text)
        parts: list[Tokens] = []
        done = 0
        for place, (number, (start, end)) in enumerate(zip(ids.tolist(), offsets.tolist(), strict=True)):
            found = text[start:end].strip()  # some take the blanks beside them
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

    def _find_messages(self, conversation: Sequence[Message], text: str) -> list[tuple[int, int]]:
        """From where to where each message stands in the text: between what the template writes around stand-ins."""
        stand_ins = [message._replace(content=STAND_IN.format(number)) for number, message in enumerate(conversation)]
        around = self.template.text(stand_ins)
        frame = []
        for stand_in in stand_ins:
            before, _, around = around.partition(stand_in.content)
            frame.append(before)
        for said in ([each.content for each in conversation], [each.content.strip() for each in conversation]):
            if "".join(part for pair in zip(frame, said, strict=True) for part in pair) + around == text:
                ends = np.cumsum([len(before) + len(each) for before, each in zip(frame, said, strict=True)]).tolist()
                return [(end - len(each), end) for end, each in zip(ends, said, strict=True)]
        raise ValueError(
            "a message spells a special token of the tokenizer, and the chat template does not write messages as they "
            "are, so that it cannot be told from one that the template writes; leave the record out, or change the "
            "spelling"
        )


def _of_learnt(answers: list[tuple[int, int]], given: list[bool]) -> list[tuple[int, int]]:
    """Of what the assistant says, the stretches of the messages that are learnt. Raises `ValueError` if it is not known
    which are.
    """
    if len(answers) != len(given):
        raise ValueError(
            f"the chat template marks {len(answers)} stretches of {len(given)} answers, so that those of the prompt "
            "cannot be told from those that are learnt; mark each answer once"
        )
    return [answer for answer, learnt in zip(answers, given, strict=True) if learnt]


def load_chat_encoder(model: str | Path, data: ConversationsConfig) -> ChatEncoder:
    """The tokenizer of a model folder or a pretrained name, with the job's chat template or its own.

    Raises `TokenizerError` if one of them cannot be loaded or used, `ConfigError` if the model has fewer positions than
    asked.
    """
    name = str(model)
    config, tokenizer = load_config(name).get_text_config(), load_tokenizer(name)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = False  # the template's are to be found
    choose_padding(tokenizer, name)
    template, end = load_template(data.chat_template, tokenizer, name)
    (end_id,) = backend.encode(end, add_special_tokens=False).ids
    keep_settings(tokenizer, split_special_tokens=False, model_input_names=["input_ids", "attention_mask"])
    tokenizer.chat_template = template.source
    vocab_size = max(backend.get_vocab(True).values()) + 1
    digest = digest_saved(partial(save_flat, tokenizer))
    added = tokenizer.added_tokens_decoder.items()
    special = {number: token.content for number, token in added if token.special or number == end_id}
    context = _resolve_context(data, config, name)
    return ChatEncoder(tokenizer, template, end, context, vocab_size, end_id, special, digest)


def _resolve_context(data: ConversationsConfig, config: Any, name: str) -> int:
    positions: int = getattr(config, "max_position_embeddings", None) or 0
    known = positions > 0
    if data.context is None:
        return min(LONGEST, positions) if known else LONGEST
    if known and data.context > positions:
        raise ConfigError(f"data.context is {data.context}, but the model {name!r} has {positions} positions")
    return data.context
