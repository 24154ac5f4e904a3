"""Splits of encoded conversations, as training reads them, and the windows that they are read in.

train.arrow  validation.arrow  test.arrow
    id              string: the record's number in the files of its split
    input_ids       list<int32>
    answered        list<int8>: 1 where a token is the assistant's
    answer_tokens   int32: how many of those are predicted
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.config.chat import ChatDataConfig, ChatJob
from trainer.data.chat.encoder import Encoded
from trainer.data.encoded import Lists, SplitSet, open_set, split_sizes
from trainer.data.packing import Packing, one_each, pack
from trainer.data.splits import TRAIN
from trainer.data.step_plan import make_tuning_plan
from trainer.records.plans import TuningPlan
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


ChatSet = SplitSet[ChatSplit]


def open_chat(store: Store, key: str) -> ChatSet:
    """Map a published set. Raises `ArtifactError` if there is none, or it is damaged."""
    return open_set(store, key, lambda table, told, pad_id: ChatSplit(table, told["answer_bytes"]))


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


def rows_of(block: Sequence[Encoded]) -> pa.RecordBatch:
    """Some conversations as rows of such a file."""
    columns = [
        pa.array([each.id for each in block], pa.string()),
        pa.array([each.tokens.input_ids for each in block], pa.list_(pa.int32())),
        pa.array([each.tokens.answered.astype(np.int8) for each in block], pa.list_(pa.int8())),
        pa.array([int(each.tokens.answered[1:].sum()) for each in block], pa.int32()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def pack_split(data: ChatDataConfig, split: ChatSplit, context: int) -> Packing:
    """The windows of a split: packed, or one for each conversation."""
    return pack(split.lengths, context) if data.packing else one_each(split.lengths, context)


def plan_windows(job: ChatJob, found: ChatSet, windows: Packing, ranks: int) -> TuningPlan:
    """The plan of a run on a set, whose training split is in these windows."""
    answer_tokens = int(np.sum(found.splits[TRAIN].answer_tokens))
    return make_tuning_plan(job.training, split_sizes(found.details), ranks, "conversation", windows, answer_tokens)


def plan_chat(job: ChatJob, key: str, ranks: int) -> tuple[TuningPlan, ChatSet]:
    """The plan of a run on a published set, and the set."""
    found = open_chat(Store(job.store), key)
    return plan_windows(job, found, pack_split(job.data, found.splits[TRAIN], found.details["context"]), ranks), found
