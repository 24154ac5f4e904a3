"""A model's own answers to conversations of an encoded set."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.common.stopping import check_stop
from trainer.data.chat.encoded import ChatSplit
from trainer.data.encoded import tokenizer_paths
from trainer.models.causal import most_positions
from trainer.models.loading import load_tokenizer
from trainer.records.evaluations import Sample
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded


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
        return [_answer(model, tokenizer, split, each, new_tokens, runtime.device, check) for each in chosen]

    if not is_sharded(model):
        return runtime.on_first(lambda: give(check_stop))
    samples = give(runtime.check_stop)
    return runtime.on_first(lambda: samples)


@torch.no_grad()
def _answer(
    model: PreTrainedModel, tokenizer: Any, split: ChatSplit, example: int, new_tokens: int, device: torch.device,
    check: Callable[[], None],
) -> Sample:  # fmt: skip
    check()
    ids, answered = split.read(example)
    end = int(np.flatnonzero(answered)[-1]) + 1
    start = end - int(np.argmin(answered[:end][::-1]))  # of the last stretch of tokens that the assistant says
    limit = most_positions(model.config)
    asked = ids[:start]  # all of it, though fewer tokens than `new_tokens` may fit behind it
    model.eval()
    generate: Any = model.generate
    output = generate(
        torch.from_numpy(asked)[None].to(device),
        attention_mask=torch.ones(1, len(asked), dtype=torch.long, device=device),
        max_new_tokens=min(new_tokens, limit - len(asked)),
        do_sample=False,
        use_cache=True,
        synced_gpus=is_sharded(model),  # all ranks compute as many tokens
    )

    def text(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    return Sample(
        prompt=text(ids[:start]),
        continuation=text(output[0, len(asked) :].tolist()),
        expected=text(ids[start:end].tolist()),
    )
