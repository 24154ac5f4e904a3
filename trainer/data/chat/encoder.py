"""Conversations to token ids, by a chat template and the model's own tokenizer, with the tokens that the assistant
says.

The ids are those of `tokenizer.apply_chat_template`, but for text that spells a special token, which stays text, and
for an answer whose beginning would share a token with what stands before it: that is read as it is when a model is
asked.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError, CorpusError
from trainer.config.chat import ConversationsConfig
from trainer.data.chat.messages import ASSISTANT, CONVERSATION, Counts, Form, Message, question_of, read_records
from trainer.data.chat.template import ChatTemplate, load_template
from trainer.data.labelled.text_encoder import choose_padding, digest_saved, keep_settings
from trainer.data.shards import is_held_out
from trainer.data.splits import TRAIN, VALIDATION, Part
from trainer.models.loading import load_config, load_tokenizer
from trainer.models.taken_tokenizer import save_flat
from trainer.models.tokenizer import byte_lengths

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

    `context`: tokens at most; `vocab_size`: one more than the greatest id; `end_id`: the token that ends an answer;
    `special`: the spellings of special tokens, by id; `digest` names the files that `save` writes, the template among
    them.
    """

    tokenizer: Any
    template: ChatTemplate
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
        """A conversation, cut to `context`. Raises `ValueError` as `ChatTemplate.write` does."""
        written = self.template.write(conversation)
        ids, offsets = self._tokens(written.text, [start for start, _ in written.answers])
        if spelt := self._spelt(conversation):
            ids, offsets = self._as_text(conversation, written.text, spelt, ids, offsets)
        answered = np.zeros(len(ids), dtype=bool)
        for start, end in written.answers:
            answered |= (offsets[:, 1] > start) & (offsets[:, 0] < end)
        unmarked = max(0, sum(message.role == ASSISTANT for message in conversation) - len(written.answers))
        truncated, ids, answered = len(ids) > self.context, ids[: self.context], answered[: self.context]
        end = int(offsets[: self.context, 1].max()) if truncated else len(written.text)
        said = [
            written.text[start:stop].removesuffix(self.template.end)[: max(0, end - start)]
            for start, stop in written.answers
        ]
        text_bytes, token_bytes = (
            len("".join(said).encode()),
            int(self._lengths[ids[answered & (ids != self.end_id)]].sum()),
        )
        return ChatEncoding(ids, answered, truncated, unmarked, text_bytes, token_bytes)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """The bytes of text that each token id stands for."""
        return byte_lengths(self.tokenizer.backend_tokenizer.to_str())

    def _tokens(self, text: str, starts: Sequence[int]) -> Tokens:
        """The ids of a text, and from where to where in it each stands; none stands on both sides of an answer's start.

        Raises `ValueError` if the tokenizer does not read the parts as it reads the whole.
        """
        ids, offsets = self._encode(text)
        ends = np.maximum.accumulate(offsets[:, 1])
        # Some tokenizers leave spaces out of offsets.
        begins = np.minimum(offsets[:, 0], np.concatenate([[0], ends[:-1]]))
        cuts = [start for start in starts if ((begins < start) & (offsets[:, 1] > start)).any()]
        if not cuts:
            return ids, offsets
        parts = [self._encode(text[start:end], start) for start, end in pairwise([0, *cuts, len(text)])]
        divided = np.concatenate([part for part, _ in parts])
        if self.tokenizer.backend_tokenizer.decode(divided, False) != self.tokenizer.backend_tokenizer.decode(
            ids, False
        ):
            raise ValueError(
                "an answer begins within a token of what the chat template writes before it, and this tokenizer reads "
                "it otherwise by itself; leave out spaces where the answer begins, or where the template asks for it"
            )
        return divided, np.concatenate([places for _, places in parts])

    def _encode(self, text: str, at: int = 0) -> Tokens:
        """The ids of a text that stands at a place of another, and from where to where each stands there."""
        found = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        return np.array(found.ids, dtype=np.int32), np.array(found.offsets, dtype=np.int64).reshape(-1, 2) + at

    def _spelt(self, conversation: Sequence[Message]) -> set[int]:
        """The special tokens whose spelling stands in a message."""
        said = [message.content for message in conversation]
        return {number for number, spelling in self.special.items() if any(spelling in each for each in said)}

    def _as_text(
        self,
        conversation: Sequence[Message],
        text: str,
        spelt: set[int],
        ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
    ) -> Tokens:
        """The same with the tokens of text in the place of special ones that a message spells."""
        places = self._find_messages(conversation, text)
        backend = self.tokenizer.backend_tokenizer
        parts: list[tuple[list[int], list[tuple[int, int]]]] = []
        for number, (start, end) in zip(ids.tolist(), offsets.tolist(), strict=True):
            if number in spelt and any(first <= start and end <= last for first, last in places):
                backend.encode_special_tokens = True
                plain = backend.encode(text[start:end], add_special_tokens=False).ids
                backend.encode_special_tokens = False
                parts.append((plain, [(start, end)] * len(plain)))
            else:
                parts.append(([number], [(start, end)]))
        return (
            np.array([each for numbers, _ in parts for each in numbers], dtype=np.int32),
            np.array([each for _, pairs in parts for each in pairs], dtype=np.int64).reshape(-1, 2),
        )

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
    template = load_template(data.chat_template, tokenizer, name)
    (end_id,) = backend.encode(template.end, add_special_tokens=False).ids
    keep_settings(tokenizer, split_special_tokens=False, model_input_names=["input_ids", "attention_mask"])
    tokenizer.chat_template = template.source
    vocab_size = max(backend.get_vocab(True).values()) + 1
    digest = digest_saved(partial(save_flat, tokenizer))
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return ChatEncoder(tokenizer, template, _resolve_context(data, config, name), vocab_size, end_id, special, digest)


def _resolve_context(data: ConversationsConfig, config: Any, name: str) -> int:
    positions: int = getattr(config, "max_position_embeddings", None) or 0
    known = positions > 0
    if data.context is None:
        return min(LONGEST, positions) if known else LONGEST
    if known and data.context > positions:
        raise ConfigError(f"data.context is {data.context}, but the model {name!r} has {positions} positions")
    return data.context


@dataclass(frozen=True)
class Encoded:
    """A conversation that is trained or measured on: its split, the record's number in its parts, and its tokens."""

    split: str
    id: str
    tokens: ChatEncoding


def read_encoded(
    data: ConversationsConfig,
    split: str,
    parts: Sequence[Part],
    cut: bool,
    encoder: ChatEncoder,
    counts: dict[str, Counts],
    most: int | None = None,
    form: Form = CONVERSATION,
) -> Iterator[Encoded]:
    """The conversations of a split's parts, encoded; with `cut`, those that a hash of the question holds out are
    validation.

    `most`: records of each part that are looked at. Raises `RecordError` for the first bad one that may not be passed
    over.
    """
    for number, conversations, encoded in read_records(data, parts, counts[split].bad, encoder.encode, most, form):
        question = question_of(conversations[0])
        held = cut and is_held_out(question, data.validation_fraction)
        found = VALIDATION if held else split
        if _count(counts[found], encoded, question):
            yield from (Encoded(found, str(number), tokens) for tokens in encoded)


def require_conversations(data: ConversationsConfig, counts: dict[str, Counts], cut: bool) -> None:
    """Raise `CorpusError` for a split with nothing in it."""
    for split, found in counts.items():
        if not found.examples:
            why = f"{found.bad.count} bad records, {found.unanswered} whose answers lie beyond data.context"
            held = (
                f", and {data.validation_fraction:g} of {TRAIN} is held out by a hash"
                if cut and split == VALIDATION
                else ""
            )
            raise CorpusError(
                f"data set {data.name!r}: the {split} split is empty ({why}{held}); check that this is the right data, "
                "or give validation data, a greater data.context or another validation_fraction"
            )


def duplicates_across(counts: dict[str, Counts]) -> int:
    """How many questions of the validation split are in train as well."""
    return len(counts[TRAIN].questions & counts[VALIDATION].questions)


def _count(counts: Counts, encoded: Sequence[ChatEncoding], question: bytes) -> bool:
    """Take a record's conversations into the counts; returns whether anything of an answer is left of each."""
    counts.truncated += any(tokens.truncated for tokens in encoded)
    counts.unmarked += sum(tokens.unmarked for tokens in encoded)
    if not all(tokens.answered[1:].any() for tokens in encoded):
        counts.unanswered += 1
        return False
    counts.examples += 1
    for tokens in encoded:
        counts.tokens += len(tokens.input_ids)
        counts.answer_tokens += int(tokens.answered[1:].sum())
        counts.answer_bytes += tokens.answer_bytes
        counts.answer_token_bytes += tokens.answer_token_bytes
        counts.longest = max(counts.longest, len(tokens.input_ids))
    counts.questions.add(hashlib.blake2b(question, digest_size=8).digest())
    return True
