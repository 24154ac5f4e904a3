"""Measuring a model that answers: the loss of held-out answers, and its own answers to some held-out questions.

runs/X/eval.json     figures by split, and the answers
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.common.errors import TokenizerError
from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.chat import ChatJob
from trainer.data.chat.encoded import ChatSet, ChatSplit, open_chat, pack_split, read_windows
from trainer.data.chat.messages import MESSAGES
from trainer.data.encoded import tokenizer_paths
from trainer.data.splits import VALIDATION
from trainer.evaluation.cache import (
    ANSWERS_FORMAT,
    PREDICTED,
    Scoring,
    as_measured,
    find_answers,
    identify_answers,
    tell_replaced,
)
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.of_runs import check_asked
from trainer.models.answering import load_answering, outline_answering
from trainer.models.loading import load_tokenizer
from trainer.models.losses import next_tokens, token_losses_in_pieces
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records.basis import answers_basis
from trainer.records.evaluations import Answer, ChatEvaluation
from trainer.records.sealed import write_sealed
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.parallelize import place_measured
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.runtime import Runtime, start_runtime
from trainer.training.sharding import is_sharded, sharding_group


class AnswerLoss(NamedTuple):
    """The mean loss in nats a token of the answers, how many tokens those are, and the bytes of their text."""

    loss: float
    tokens: int
    text_bytes: int

    def figures(self) -> dict[str, float]:
        """The figures by name; bits a byte of answers that have text, as of held-out text."""
        told = {"loss": self.loss, "perplexity": math.exp(min(self.loss, 700.0))}
        if self.text_bytes:
            told["bits_per_byte"] = self.loss * self.tokens / math.log(2) / self.text_bytes
        return told


@torch.no_grad()
def answer_losses(
    model: PreTrainedModel,
    split: ChatSplit,
    job: ChatJob,
    data: ChatSet,
    runtime: Runtime,
    advance: Callable[[int], None] = lambda windows: None,
) -> AnswerLoss:
    """Measure a model on a split, shared among the ranks.

    Sums are in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    was_training, batch = model.training, job.evaluation.batch
    model.eval()
    windows = pack_split(job.data, split, data.details["context"])
    sums = torch.zeros(len(windows), dtype=torch.float64)
    for round_ in range(0, len(windows), runtime.ranks * batch):
        runtime.check_stop()
        first = round_ + runtime.rank * batch
        own = range(first, min(first + batch, len(windows)))
        if not own and not is_sharded(model):  # of the last round, some ranks have no share
            break
        chosen = own or range(1)  # they must compute all the same where each holds a part of the model
        read = {
            name: torch.from_numpy(part) for name, part in read_windows(split, windows, chosen, data.pad_id).items()
        }
        shape = read["input_ids"].shape
        with runtime.accelerator.autocast():
            each = token_losses_in_pieces(
                model,
                read["input_ids"].to(runtime.device),
                next_tokens(read["labels"]).to(runtime.device),
                read["position_ids"].to(runtime.device) if job.data.packing else None,
            )
        sums[first : first + len(own)] = each.view(shape)[: len(own)].double().sum(dim=1).cpu()
        advance(len(own) * runtime.ranks)
    model.train(was_training)
    tokens = int(split.answer_tokens.sum())
    return AnswerLoss(math.fsum(runtime.sum(sums).tolist()) / tokens, tokens, split.answer_bytes)


@explaining_lost_ranks()
def evaluate_answers(
    job: ChatJob, run_key: str, progress: Progress, other: str | None = None, encoded: str | None = None
) -> ChatEvaluation:
    """Measure a run's final model and have it answer; an evaluation already made is reused. Called by every rank.

    The final model of an `other` run can be measured on this one's data, if it has the same tokenizer. `encoded` is the
    key of the set that the job prepared: another job may have asked for the run with another test split since, which
    raises `RunError`. Raises `ArtifactError` if a model is missing or damaged, `TokenizerError` if it does not read
    this data.
    """
    store, training, job = Store(job.store), job.training, as_measured(job, other)
    check_asked(store, run_key, encoded)
    wanted = identify_answers(store, job, run_key, other, encoded)
    runtime = start_runtime(training.precision, training.device, training.deterministic)
    earlier = runtime.on_first(lambda: find_answers(store, wanted))
    if earlier is not None:
        return earlier
    data, folder = open_chat(store, wanted.encoded), wanted.model.folder
    if other is None:
        runtime.on_first(lambda: tell_replaced(store, wanted))
    else:
        _check_reads(wanted, data)
    splits = [split for split in PREDICTED if split in data.splits]
    measured: dict[str, AnswerLoss] = {}
    with ExitStack() as stack:
        stack.enter_context(sharding_group(training, runtime))
        model = place_measured(
            training, runtime, partial(outline_answering, folder, job.model.attention, data.details),
            partial(load_answering, folder, job.model.attention, data.details, wanted.model.beside),
        )  # fmt: skip
        total = sum(len(pack_split(job.data, data.splits[split], data.details["context"])) for split in splits)
        bar = stack.enter_context(progress.bar("evaluate", total, "window"))
        for split in splits:
            measured[split] = answer_losses(model, data.splits[split], job, data, runtime, bar.advance)
        samples = answer(model, store, wanted.encoded, data, job, runtime)
    result = ChatEvaluation(
        format=ANSWERS_FORMAT, fingerprint=wanted.fingerprint, key=wanted.key, checkpoint=f"{other or run_key}/{FINAL}",
        encoded=wanted.encoded, scores={split: each.figures() for split, each in measured.items()},
        answer_tokens={split: each.tokens for split, each in measured.items()},
        answer_bytes={split: each.text_bytes for split, each in measured.items()}, samples=samples,
        measured_on=answers_basis(data.details, job.data.model_dump(), VALIDATION, training.precision),
        clean_of=runtime.on_first(lambda: clean_of_splits(store, other or run_key, data.details, [MESSAGES])),
        model=wanted.model.key if other else None,
    )  # fmt: skip
    runtime.on_first(lambda: _record(store, None if other else run_key, result))
    return result


def answer(
    model: PreTrainedModel, store: Store, encoded: str, data: ChatSet, job: ChatJob, runtime: Runtime
) -> list[Answer]:
    """Have a model give the last answer of some held-out conversations, the likeliest token each time. Called by every
    rank.

    The first one does it; with a model that is divided among them, all of them do, and what the first one has counts.
    """
    held_out = data.splits[VALIDATION]
    chosen = np.linspace(0, len(held_out) - 1, min(job.evaluation.samples, len(held_out))).round().astype(int).tolist()
    tokenizer = load_tokenizer(str(tokenizer_paths(store, encoded)[0].parent))

    def give(check: Callable[[], None]) -> list[Answer]:
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
) -> Answer:  # fmt: skip
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

    return Answer(
        prompt=text(ids[:start]),
        continuation=text(output[0, len(asked) :].tolist()),
        expected=text(ids[start:end].tolist()),
    )


def _check_reads(wanted: Scoring, data: ChatSet) -> None:
    """Raise `TokenizerError` if another model has another tokenizer than this data."""
    carried = wanted.model.files.get(TOKENIZER_FILE)
    if carried is not None and carried != data.details["tokenizer_sha256"]:
        raise TokenizerError(f"{wanted.model.key} has another tokenizer than the one that encoded this data")


def _record(store: Store, run: str | None, result: ChatEvaluation) -> None:
    """Write the result; of a run's own model, unless the run was asked for with another test split since."""
    if run is not None:
        check_asked(store, run, result.encoded)
    write_sealed(store, result.key, result.recorded())
