"""Encoded conversations: the step that builds a set, its splits as training reads them, and their windows.

train.arrow  validation.arrow  test.arrow
    id              string: the record's number in the files of its split
    input_ids       list<int32>
    answered        list<int8>: 1 where a token is the assistant's
    answer_tokens   int32: the number of these that are predicted
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError
from trainer.common.progress import Progress
from trainer.config.chat import ChatDataConfig, ChatJob, ConversationsConfig, ConversationsJob
from trainer.data.chat.encoder import ChatEncoder, ChatEncoding, load_chat_encoder
from trainer.data.chat.messages import CONVERSATION, Form, question_of, read_records
from trainer.data.encoded import IGNORED, Lists, SplitSet, encoded_step, in_data, open_set, split_sizes, writing_rows
from trainer.data.packing import Packing, one_each, pack
from trainer.data.shards import is_held_out
from trainer.data.splits import TRAIN, VALIDATION, SplitSource, bad_records, find_splits
from trainer.data.step_plan import make_tuning_plan
from trainer.models.pretrained import find_pretrained
from trainer.models.tokenizer import keeps_text
from trainer.records.plans import TuningPlan
from trainer.records.steps import Step
from trainer.store.storage import Store

log = logging.getLogger(__name__)

FORMAT = 8

BLOCK = 512
"""Conversations written at a time."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()), pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("answered", pa.list_(pa.int8())),
        pa.field("answer_tokens", pa.int32()),
    ]
)  # fmt: skip


class Encoded(NamedTuple):
    """A conversation for training or evaluation: its split, the record's index in the split's parts, and its tokens."""

    split: str
    id: str
    tokens: ChatEncoding


@dataclass
class Counts:
    """Counts of a split's records; `bad` are those that were skipped.

    `unanswered` records lost all tokens of an answer, or the difference between two answers, when their end was cut
    off; they are left out. `unmarked` are answers that the template does not mark, so they are not learnt.
    """

    bad: BadRecords
    examples: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    answer_bytes: int = 0
    answer_token_bytes: int = 0
    longest: int = 0
    truncated: int = 0
    unanswered: int = 0
    unmarked: int = 0
    questions: set[bytes] = field(default_factory=set)

    def take(self, encoded: Sequence[ChatEncoding], question: bytes) -> bool:
        """Count a record's conversations; returns whether each still has answer tokens, and they differ."""
        self.truncated += any(tokens.truncated for tokens in encoded)
        self.unmarked += sum(tokens.unmarked for tokens in encoded)
        distinct = {tokens.input_ids.tobytes() for tokens in encoded}
        if len(distinct) < len(encoded) or not all(tokens.answered[1:].any() for tokens in encoded):
            self.unanswered += 1
            return False
        self.examples += 1
        for tokens in encoded:
            self.tokens += len(tokens.input_ids)
            self.answer_tokens += int(tokens.answered[1:].sum())
            self.answer_bytes += tokens.answer_bytes
            self.answer_token_bytes += tokens.answer_token_bytes
            self.longest = max(self.longest, len(tokens.input_ids))
        self.questions.add(hashlib.blake2b(question, digest_size=8).digest())
        return True

    def as_details(self) -> dict[str, Any]:
        """The counts by name, for a manifest."""
        return {
            name: value for name, value in vars(self).items() if name not in ("questions", "bad")
        } | self.bad.as_details()


def encode_conversations(
    store: Store,
    job: ConversationsJob,
    progress: Progress,
    model_folder: str | Path | None = None,
    form: Form = CONVERSATION,
) -> Step:
    """The step that encodes the conversations of records of a form, in order, with the model's tokenizer.

    It raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for an unusable tokenizer or template,
    `ConfigError` for a context beyond the model's positions, `StorageError` if the store refuses.
    """
    data, folder = job.data, model_folder or find_pretrained(store, job.model.pretrained).folder
    encoder, source = load_chat_encoder(folder, data), find_splits(store, data)
    options = in_data({"task": data.task, "source": data.source, "context": encoder.context})
    write = partial(_write, data, progress, source, encoder, form)
    return encoded_step(store, data, source, encoder, {"format": FORMAT, **options}, write)


def read_conversations(
    data: ConversationsConfig,
    source: SplitSource,
    encoder: ChatEncoder,
    counts: dict[str, Counts],
    progress: Progress,
    doing: str = "check",
    most: int | None = None,
    form: Form = CONVERSATION,
) -> Iterator[Encoded]:
    """All conversations of some data, or those of `most` records per file, encoded and counted; raises as encoding.

    Without validation parts, train's conversations whose question is held out by its hash become validation.
    """
    with progress.bar(f"{doing} {data.name}", None, form.name) as bar:
        for split, parts in source.parts.items():
            cut = source.cut and split == TRAIN
            made = read_records(data, parts, counts[split].bad, encoder.encode, most, form)
            for number, conversations, encoded in made:
                question = question_of(conversations[0])
                side = VALIDATION if cut and is_held_out(question, data.validation_fraction) else split
                if counts[side].take(encoded, question):
                    yield from (Encoded(side, str(number), tokens) for tokens in encoded)
                    bar.advance(1)
    if most is None:
        _require_conversations(data, counts, source.cut)


def log_counts(data: ConversationsConfig, counts: dict[str, Counts]) -> None:
    """Log what was skipped, cut or left out, and how many questions of other splits are in train."""
    name = data.name
    for split, found in counts.items():
        if found.bad.count:
            log.warning("data set %s, %s split: skipped %s", name, split, found.bad.describe())
        if found.truncated or found.unanswered:
            log.warning(
                "data set %s, %s split: conversations longer than data.context, whose end was cut off: %d; left out "
                "because no answer is left, or both answers are equal: %d", name, split, found.truncated,
                found.unanswered,
            )  # fmt: skip
        if found.unmarked:
            log.warning(
                "data set %s, %s split: answers that the chat template does not mark with {%% generation %%}, so they "
                "are not learnt: %d", name, split, found.unmarked,
            )  # fmt: skip
    for split, repeated in in_train(counts).items():
        if repeated:
            log.warning(
                "data set %s: %d of %d %s questions are also in train, so metrics on %s are too optimistic",
                name, repeated, len(counts[split].questions), split, split,
            )  # fmt: skip


def empty_counts(data: ConversationsConfig, source: SplitSource) -> dict[str, Counts]:
    """Zero counts for all splits."""
    splits = [TRAIN, VALIDATION, *(split for split in source.parts if split not in (TRAIN, VALIDATION))]
    return {split: Counts(bad_records(data, split)) for split in splits}


def _write(
    data: ConversationsConfig, progress: Progress, source: SplitSource, encoder: ChatEncoder, form: Form, folder: Path
) -> dict[str, Any]:
    """Write a file for each split; returns the manifest's details."""
    counts = empty_counts(data, source)
    blocks: dict[str, list[Encoded]] = {split: [] for split in counts}
    with ExitStack() as stack:
        files = {split: stack.enter_context(writing_rows(folder, split, SCHEMA)) for split in counts}
        for found in read_conversations(data, source, encoder, counts, progress, "encode", form=form):
            block = blocks[found.split]
            block.append(found)
            if len(block) == BLOCK:
                files[found.split].write_batch(rows_of(block))
                block.clear()
        for split, block in blocks.items():
            if block:
                files[split].write_batch(rows_of(block))
    log_counts(data, counts)
    return _describe(data, encoder, counts)


def _describe(data: ConversationsConfig, encoder: ChatEncoder, counts: dict[str, Counts]) -> dict[str, Any]:
    """The manifest's details, with everything that a report needs."""
    repeated = in_train(counts)
    return {
        "name": data.name,
        "task": data.task,
        "context": encoder.context,
        "end_id": encoder.end_id,
        "end_of_turn": encoder.end,
        "pad_id": encoder.pad_id,
        "vocab_size": encoder.vocab_size,
        "keeps_text": keeps_text(encoder.tokenizer.backend_tokenizer.to_str()),
        "splits": {
            split: found.as_details() | ({"in_train": repeated[split]} if split in repeated else {})
            for split, found in counts.items()
        },
    }


def _require_conversations(data: ConversationsConfig, counts: dict[str, Counts], cut: bool) -> None:
    """Raise `CorpusError` for an empty split."""
    for split, found in counts.items():
        if not found.examples:
            why = f"{found.bad.count} bad records, {found.unanswered} whose answers are beyond data.context"
            held = (
                f", and {data.validation_fraction:g} of {TRAIN} is held out by a hash"
                if cut and split == VALIDATION
                else ""
            )
            raise CorpusError(
                f"data set {data.name!r}: the {split} split is empty ({why}{held}); check that this is the right data, "
                "or add validation data, increase data.context or change validation_fraction"
            )


def in_train(counts: dict[str, Counts]) -> dict[str, int]:
    """The number of questions of each other split that are also in train."""
    learnt = counts[TRAIN].questions
    return {split: len(learnt & found.questions) for split, found in counts.items() if split != TRAIN}


def rows_of(block: Sequence[Encoded]) -> pa.RecordBatch:
    """Some conversations as rows of the file."""
    columns = [
        pa.array([each.id for each in block], pa.string()),
        pa.array([each.tokens.input_ids for each in block], pa.list_(pa.int32())),
        pa.array([each.tokens.answered.astype(np.int8) for each in block], pa.list_(pa.int8())),
        pa.array([int(each.tokens.answered[1:].sum()) for each in block], pa.int32()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


class ChatSplit:
    """The conversations of one split: tokens of each (`lengths`), and those that are predicted, int64 [N].

    `answer_bytes` is the size of the text of all answers.
    """

    def __init__(self, table: pa.Table, answer_bytes: int) -> None:
        self.answer_bytes = answer_bytes
        self._ids, self._answered = Lists(table["input_ids"]), Lists(table["answered"])
        self._names = table["id"]
        self.lengths = self._ids.lengths
        self.answer_tokens: NDArray[np.int64] = table["answer_tokens"].to_numpy().astype(np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def alone(self) -> Packing:
        """A packing with one conversation per window."""
        return one_each(self.lengths, int(self.lengths.max()))

    def name(self, example: int) -> str:
        """The number of a conversation's record in the files of its split."""
        return str(self._names[example])

    def read(self, example: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A conversation's ids and the mask of the assistant's tokens; each of shape [T]."""
        place, length = np.array([example]), int(self.lengths[example])
        return self._ids.read(place, length, 0)[0], self._answered.read(place, length, 0)[0].astype(bool)


ChatSet = SplitSet[ChatSplit]


def open_chat(store: Store, key: str) -> ChatSet:
    """Map a published set. Raises `ArtifactError` if it is missing or damaged."""
    return open_set(store, key, lambda table, facts, pad_id: ChatSplit(table, facts["answer_bytes"]))


def read_windows(
    split: ChatSplit, packing: Packing, windows: Sequence[int] | NDArray[np.int64], pad_id: int
) -> dict[str, NDArray[np.int64]]:
    """Some windows, padded on the right to the longest: input_ids, labels and position_ids, each of shape [B, T].

    Positions restart at 0 in each conversation, and in the padding. The label of an assistant's token is the token
    itself, which is predicted from the tokens before it in its conversation; other labels are `IGNORED`.
    """
    members = [[split.read(int(example)) for example in packing.window(int(window))] for window in windows]
    width = max(sum(len(ids) for ids, _ in each) for each in members)
    input_ids = np.full((len(members), width), pad_id, dtype=np.int64)
    labels = np.full((len(members), width), IGNORED, dtype=np.int64)
    position_ids = np.empty((len(members), width), dtype=np.int64)
    for row, conversations in enumerate(members):
        start = 0
        for ids, answered in conversations:
            end = start + len(ids)
            input_ids[row, start:end] = ids
            labels[row, start + 1 : end] = np.where(answered, ids, IGNORED)[1:]
            position_ids[row, start:end] = np.arange(len(ids))
            start = end
        position_ids[row, start:] = np.arange(width - start)
    return {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}


def pack_split(data: ChatDataConfig, split: ChatSplit, context: int) -> Packing:
    """The windows of a split: packed, or one per conversation."""
    return pack(split.lengths, context) if data.packing else one_each(split.lengths, context)


def plan_windows(job: ChatJob, found: ChatSet, windows: Packing, ranks: int) -> TuningPlan:
    """The plan of a run on a set whose training split has these windows."""
    answer_tokens = int(np.sum(found.splits[TRAIN].answer_tokens))
    return make_tuning_plan(job, split_sizes(found.details), ranks, "conversation", windows, answer_tokens)


def plan_chat(job: ChatJob, key: str, ranks: int) -> tuple[TuningPlan, ChatSet]:
    """The plan of a run on a published set, and the set."""
    found = open_chat(Store(job.store), key)
    return plan_windows(job, found, pack_split(job.data, found.splits[TRAIN], found.details["context"]), ranks), found
