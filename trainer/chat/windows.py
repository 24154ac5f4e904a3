"""The windows that a split's conversations are read in."""

import numpy as np

from trainer.chat.encoded import ChatSet, ChatSplit, open_chat
from trainer.config.chat import ChatDataConfig, ChatJob
from trainer.labelled.sources import TRAIN, VALIDATION
from trainer.order.packing import Packing, one_each, pack
from trainer.order.plan import make_chat_plan
from trainer.records.plans import ChatPlan
from trainer.store.storage import Store


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
