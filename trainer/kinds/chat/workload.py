"""Instruction tuning as the training loop sees it: windows of conversations in their order, and the loss of the
answers.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.config.chat import ChatJob
from trainer.data.chat.encoded import open_chat, pack_split, plan_windows, read_windows
from trainer.data.dataset import Batch
from trainer.data.splits import TRAIN, VALIDATION
from trainer.kinds.chat.evaluate import answer_losses
from trainer.kinds.tuning_workload import CausalTuning
from trainer.models.trial import check_packed, read_apart, tried_loss
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.loop import Measured
from trainer.training.runtime import Runtime


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
        """Inputs of some windows; where each holds one conversation, positions are as the model counts them itself."""
        inputs = read_windows(self._train, self.windows, windows, self._set.pad_id)
        if not self._job.data.packing:
            del inputs["position_ids"]
        return {name: torch.from_numpy(values) for name, values in inputs.items()}

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        held_out = self._set.splits[VALIDATION]
        found = answer_losses(model, held_out, self._job, self._set, runtime)
        return Measured(dict(found.figures), {"answer_tokens": found.counts["answer_tokens"]})
