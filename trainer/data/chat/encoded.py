"""Encoded conversations, as training reads them, and the windows that they are read in.

train.arrow  validation.arrow  test.arrow     Arrow IPC files, uncompressed, mapped into memory
    id              string: the record's number in the files of its split
    input_ids       list<int32>
    answered        list<int8>: 1 where a token is the assistant's
    answer_tokens   int32: how many of those are predicted
tokenizer.json, tokenizer_config.json, chat_template.jinja …    as `AutoTokenizer.from_pretrained` reads them
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.config.chat import ChatDataConfig, ChatJob
from trainer.data.chat.encoder import Encoded
from trainer.data.labelled.encoded import ENDING, Lists, encoded_manifest, open_rows
from trainer.data.labelled.sources import TRAIN, VALIDATION
from trainer.data.packing import Packing, one_each, pack
from trainer.data.step_plan import make_chat_plan
from trainer.records.plans import ChatPlan
from trainer.store.manifest import fetch_made
from trainer.store.storage import Store

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()), pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("answered", pa.list_(pa.int8())),
        pa.field("answer_tokens", pa.int32()),
    ]
)  # fmt: skip

IGNORED = -100
"""The label of what is not predicted, as the loss of language models has it."""

BLOCK = 512
"""Conversations that are written at a time."""


class ChatSplit:
    """The conversations of one split: tokens of each (`lengths`), and those of them that are predicted, int64 [N].

    `answer_bytes` are those of the text of all answers.
    """

    def __init__(self, table: pa.Table, answer_bytes: int) -> None:
        self.answer_bytes = answer_bytes
        self._ids, self._answered = Lists(table["input_ids"]), Lists(table["answered"])
        self._names = table["id"]
        self.lengths = self._ids.lengths
        self.answer_tokens: NDArray[np.int64] = table["answer_tokens"].to_numpy().astype(np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, example: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A conversation's ids, and which of them the assistant says; of shape [T]."""
        place, length = np.array([example]), int(self.lengths[example])
        return self._ids.read(place, length, 0)[0], self._answered.read(place, length, 0)[0].astype(bool)


class ChatSet(NamedTuple):
    """A published set of conversations: its manifest's details, its splits, and the id that fills windows."""

    details: dict[str, Any]
    splits: dict[str, ChatSplit]
    pad_id: int


def open_chat(store: Store, key: str) -> ChatSet:
    """Map a published set. Raises `ArtifactError` if there is none, or it is damaged."""
    manifest = encoded_manifest(store, key)
    details, digests = manifest.details, manifest.digests()
    names = {split: f"{split}{ENDING}" for split in details["splits"]}
    splits = {
        each: ChatSplit(open_rows(fetch_made(store, key, name, digests[name])), details["splits"][each]["answer_bytes"])
        for each, name in names.items()
    }
    return ChatSet(details, splits, details["pad_id"])


def read_windows(
    split: ChatSplit, packing: Packing, windows: Sequence[int] | NDArray[np.int64], pad_id: int
) -> dict[str, NDArray[np.int64]]:
    """Some windows, filled up on the right to the longest of them: input_ids, labels and position_ids, of shape [B, T].

    Positions begin anew with each conversation, and are 0 in what fills up. The label of a token is itself where it is
    the assistant's, and is predicted from the tokens before it in its conversation.
    """
    members = [[split.read(int(example)) for example in packing.window(int(window))] for window in windows]
    width = max(sum(len(ids) for ids, _ in each) for each in members)
    input_ids = np.full((len(members), width), pad_id, dtype=np.int64)
    labels = np.full((len(members), width), IGNORED, dtype=np.int64)
    position_ids = np.zeros((len(members), width), dtype=np.int64)
    for row, conversations in enumerate(members):
        start = 0
        for ids, answered in conversations:
            end = start + len(ids)
            input_ids[row, start:end] = ids
            labels[row, start + 1 : end] = np.where(answered, ids, IGNORED)[1:]
            position_ids[row, start:end] = np.arange(len(ids))
            start = end
    return {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}


class ChatWriter:
    """Writes the conversations of a split to its file, a block at a time."""

    def __init__(self, folder: Path, split: str) -> None:
        self._sink = pa.OSFile(str(folder / f"{split}{ENDING}"), "wb")
        self._file = pa.ipc.new_file(self._sink, SCHEMA)
        self._block: list[Encoded] = []

    def add(self, found: Encoded) -> None:
        self._block.append(found)
        if len(self._block) == BLOCK:
            self._write()

    def close(self) -> None:
        if self._block:
            self._write()
        self._file.close()
        self._sink.close()

    def _write(self) -> None:
        columns = [
            pa.array([each.id for each in self._block], pa.string()),
            pa.array([each.tokens.input_ids for each in self._block], pa.list_(pa.int32())),
            pa.array([each.tokens.answered.astype(np.int8) for each in self._block], pa.list_(pa.int8())),
            pa.array([int(each.tokens.answered[1:].sum()) for each in self._block], pa.int32()),
        ]
        self._file.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._block = []


def pack_split(data: ChatDataConfig, split: ChatSplit, context: int) -> Packing:
    """The windows of a split: packed, or one for each conversation."""
    return pack(split.lengths, context) if data.packing else one_each(split.lengths, context)


def plan_windows(job: ChatJob, found: ChatSet, windows: Packing, ranks: int) -> ChatPlan:
    """The plan of a run on a set, whose training split is in these windows."""
    answer_tokens = int(np.sum(found.splits[TRAIN].answer_tokens))
    return make_chat_plan(job.training, windows, answer_tokens, len(found.splits[VALIDATION]), ranks)


def plan_chat(job: ChatJob, key: str, ranks: int) -> tuple[ChatPlan, ChatSet]:
    """The plan of a run on a published set, and the set."""
    found = open_chat(Store(job.store), key)
    return plan_windows(job, found, pack_split(job.data, found.splits[TRAIN], found.details["context"]), ranks), found
