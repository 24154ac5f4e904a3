"""Measuring a model that answers: the loss of held-out answers, and its own answers to some held-out questions.

runs/X/eval.json     figures by split, and the answers
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.common.formats import perplexity_of
from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.chat import ChatJob
from trainer.data.chat.encoded import ChatSet, ChatSplit, open_chat, pack_split, read_windows
from trainer.data.chat.messages import MESSAGES
from trainer.data.encoded import tokenizer_paths
from trainer.data.splits import VALIDATION
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.measurement import PREDICTED, Measurement
from trainer.evaluation.scoring import nothing, score_each
from trainer.kinds.tuning_workload import measured_causal
from trainer.models.loading import load_tokenizer
from trainer.models.losses import next_tokens, token_losses_in_pieces
from trainer.records.basis import answers_basis
from trainer.records.evaluations import Result, Sample, Scores
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded


def answer_losses(
    model: PreTrainedModel,
    split: ChatSplit,
    job: ChatJob,
    data: ChatSet,
    runtime: Runtime,
    advance: Callable[[int], None] = nothing,
) -> Scores:
    """Measure a model on a split, shared among the ranks.

    Sums are in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    windows = pack_split(job.data, split, data.details["context"])

    def score(chosen: range) -> torch.Tensor:
        read = {
            name: torch.from_numpy(part).to(runtime.device)
            for name, part in read_windows(split, windows, chosen, data.pad_id).items()
        }
        positions = read["position_ids"] if job.data.packing else None
        each = token_losses_in_pieces(model, read["input_ids"], next_tokens(read["labels"]), positions)
        return each.view(read["input_ids"].shape).double().sum(dim=1, keepdim=True)

    sums = score_each(model, len(windows), 1, job.evaluation.batch, runtime, score, advance)
    tokens, text_bytes = int(split.answer_tokens.sum()), split.answer_bytes
    total = math.fsum(sums[:, 0].tolist())
    bits = {"bits_per_byte": total / math.log(2) / text_bytes} if text_bytes else {}
    return Scores(
        figures={"loss": total / tokens, "perplexity": perplexity_of(total / tokens), **bits},
        counts={"answer_tokens": tokens, "answer_bytes": text_bytes},
    )


def measure_answers(wanted: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Measure a run's final model, or another model with the same tokenizer, and have it answer. Called by every rank.

    Raises `TokenizerError` if the model does not read this data.
    """
    job: ChatJob = wanted.settings
    store, (encoded,) = Store(job.store), wanted.data
    data, run = open_chat(store, encoded), wanted.checkpoint.removesuffix(f"/{FINAL}")
    splits = [split for split in PREDICTED if split in data.splits]
    measured: dict[str, Scores] = {}
    with ExitStack() as stack:
        model = stack.enter_context(measured_causal(wanted, data.details, runtime))
        total = sum(len(pack_split(job.data, data.splits[split], data.details["context"])) for split in splits)
        bar = stack.enter_context(progress.bar("evaluate", total, "window"))
        for split in splits:
            measured[split] = answer_losses(model, data.splits[split], job, data, runtime, bar.advance)
        samples = answer(model, store, encoded, data, job, runtime)
    return wanted.result(
        by="split",
        groups=measured,
        samples=samples,
        measured_on=answers_basis(data.details, job.data.model_dump(), VALIDATION, job.training.precision),
        clean_of=runtime.on_first(lambda: clean_of_splits(store, run, data.details, [MESSAGES])),
    )


def answer(
    model: PreTrainedModel, store: Store, encoded: str, data: ChatSet, job: ChatJob, runtime: Runtime
) -> list[Sample]:
    """Have a model give the last answer of some held-out conversations, the likeliest token each time. Called by every
    rank.

    The first one does it; with a model that is divided among them, all of them do, and what the first one has counts.
    """
    held_out = data.splits[VALIDATION]
    chosen = np.linspace(0, len(held_out) - 1, min(job.evaluation.samples, len(held_out))).round().astype(int).tolist()
    tokenizer = load_tokenizer(str(tokenizer_paths(store, encoded)[0].parent))

    def give(check: Callable[[], None]) -> list[Sample]:
        return [
            _answer(model, tokenizer, held_out, each, job.evaluation.new_tokens, runtime.device, check)
            for each in chosen
        ]

    if not is_sharded(model):
        return runtime.on_first(lambda: give(check_stop))
    samples = give(runtime.check_stop)
    return runtime.on_first(lambda: samples)


@torch.no_grad()
def _answer(
    model: PreTrainedModel, tokenizer: Any, held_out: ChatSplit, example: int, new_tokens: int, device: torch.device,
    check: Callable[[], None],
) -> Sample:  # fmt: skip
    check()
    ids, answered = held_out.read(example)
    end = int(np.flatnonzero(answered)[-1]) + 1
    start = end - int(np.argmin(answered[:end][::-1]))  # of the last stretch of tokens that the assistant says
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
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
