"""The workload of instruction tuning, and the measurement of a model that answers."""

import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.common.display import perplexity_of
from trainer.common.progress import Progress
from trainer.config.chat import ChatJob
from trainer.data.chat.encoded import ChatSet, ChatSplit, open_chat, pack_split, plan_windows, read_windows
from trainer.data.chat.messages import MESSAGES
from trainer.data.dataset import Batch
from trainer.data.splits import TRAIN, VALIDATION
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.dialogue import answer, spread_evenly
from trainer.evaluation.measurement import PREDICTED, Measurement
from trainer.evaluation.scoring import nothing, score_each
from trainer.kinds.tuning_workload import CausalTuning, measured_causal
from trainer.models.losses import next_tokens, token_losses_in_pieces
from trainer.models.trial import check_packed, read_apart, reading_apart, tried_loss
from trainer.records.basis import answers_basis, basis_by_split
from trainer.records.evaluations import Result, Scores
from trainer.store.manifest import ArtifactRef
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.workload import Measured


def answer_losses(
    model: PreTrainedModel,
    split: ChatSplit,
    job: ChatJob,
    data: ChatSet,
    runtime: Runtime,
    advance: Callable[[int], None] = nothing,
) -> Scores:
    """Measure a model on a split, shared among the ranks.

    Sums are in float64 and in a fixed order, so the number of ranks does not change the result.
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


def measure_answers(measurement: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Measure a run's final model, or another model with the same tokenizer, and generate answers. Called by every
    rank.

    Raises `TokenizerError` if the model cannot read this data.
    """
    job: ChatJob = measurement.settings
    store, (encoded,) = Store(job.store), measurement.data
    data, run = open_chat(store, encoded), measurement.checkpoint.removesuffix(f"/{FINAL}")
    splits = [split for split in PREDICTED if split in data.splits]
    measured: dict[str, Scores] = {}
    with ExitStack() as stack:
        model = stack.enter_context(measured_causal(measurement, data.details, runtime))
        total = sum(len(pack_split(job.data, data.splits[split], data.details["context"])) for split in splits)
        bar = stack.enter_context(progress.bar("evaluate", total, "window"))
        with reading_apart(model, data.details["context"]) if job.data.packing else nullcontext():
            for split in splits:
                measured[split] = answer_losses(model, data.splits[split], job, data, runtime, bar.advance)
        held_out, evaluation = data.splits[VALIDATION], job.evaluation
        chosen = spread_evenly(len(held_out), evaluation.samples)
        samples = answer(model, store, encoded, held_out, chosen, evaluation.new_tokens, runtime)
    return measurement.result(
        by="split",
        groups=measured,
        samples=samples,
        measured_on=basis_by_split(
            partial(answers_basis, data.details, job.data.model_dump(), precision=job.training.precision), measured
        ),
        clean_of=runtime.on_first(lambda: clean_of_splits(store, run, data.details, [MESSAGES])),
    )


class Chat(CausalTuning):
    """The `Workload` of a `ChatJob`."""

    def __init__(self, job: ChatJob, store: Store, data: ArtifactRef, ranks: int) -> None:
        self._job, self._set = job, open_chat(store, data.key)
        self._train, self.set_details = self._set.splits[TRAIN], self._set.details
        self.windows = pack_split(job.data, self._train, self._set.details["context"])
        plan, lengths = plan_windows(job, self._set, self.windows, ranks), self.windows.sums(self._train.lengths)
        by_length = job.training.group_by_length and not job.data.packing
        super().__init__(job, store, data, ranks, lengths, by_length, plan)
        self._targets = self.windows.sums(self._train.answer_tokens)

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        objective = tried_loss(model, self._set.details["context"])
        if self._job.data.packing:
            advice = "set data.packing to false, which gives each conversation a row of its own"
            check_packed(model, self._set.details["context"], "conversations", advice)
            read_apart(model, self._set.details["context"])
        return objective

    def read_batch(self, number: int, rank: int) -> Batch:
        windows, assigned = self.deal(number, rank)
        micro_batches = [{**self._read(part), "weight": torch.tensor(weight)} for part, weight in assigned]
        return Batch(micro_batches, int(self._targets[windows].sum()), int(self._lengths[windows].sum()))

    def _read(self, windows: np.ndarray[Any, Any]) -> dict[str, torch.Tensor]:
        """Inputs of some windows. If each window holds one conversation, the model counts positions itself, and a mask
        marks the padding.
        """
        inputs = read_windows(self._train, self.windows, windows, self._set.pad_id)
        if not self._job.data.packing:
            positions = inputs.pop("position_ids")
            inputs["attention_mask"] = (positions == np.arange(positions.shape[1])).astype(np.int64)
        return {name: torch.from_numpy(values) for name, values in inputs.items()}

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        held_out = self._set.splits[VALIDATION]
        found = answer_losses(model, held_out, self._job, self._set, runtime)
        return Measured(dict(found.figures), {"answer_tokens": found.counts["answer_tokens"]})
