"""Instruction tuning as the training loop sees it: windows of conversations in their order, and the loss of the
answers.
"""

from pathlib import Path
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
from trainer.kinds.tuning_workload import TuningWorkload
from trainer.models.adapters import add_adapter, restore_adapter
from trainer.models.answering import load_answering, outline_answering
from trainer.models.outline import Outline, Rows
from trainer.models.pretrained import find_model
from trainer.models.trial import check_packed, tried_loss
from trainer.store.storage import Store
from trainer.training.checkpoint import Criterion
from trainer.training.loop import Measured
from trainer.training.runtime import Runtime


class Chat(TuningWorkload):
    """The `Workload` of a `ChatJob`."""

    criterion = Criterion("loss", greater_is_better=False)

    def __init__(self, job: ChatJob, store: Store, key: str, ranks: int) -> None:
        self._job, self._set = job, open_chat(store, key)
        self._train = self._set.splits[TRAIN]
        self.windows = pack_split(job.data, self._train, self._set.details["context"])
        plan, lengths = plan_windows(job, self._set, self.windows, ranks), self.windows.sums(self._train.lengths)
        super().__init__(job, store, key, plan, lengths, job.training.group_by_length and not job.data.packing)
        self._targets = self.windows.sums(self._train.answer_tokens)

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        options = self._job.model
        if options.lora is None:
            return load_answering(self._source(folder), options.attention, self._set.details)
        model = load_answering(self._source(None), options.attention, self._set.details)
        if folder is None:
            add_adapter(model, options.lora, self._job.training.seed, name=options.pretrained)
        else:
            restore_adapter(model, folder)
        return model

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        return outline_answering(self._source(folder), self._job.model.attention, self._set.details, rows)

    def _source(self, folder: Path | None) -> str:
        return str(folder or find_model(self._store, self._job.model.pretrained, hub=True).folder)

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        objective = tried_loss(model, self._set.details["context"])
        if self._job.data.packing:
            advice = "set data.packing to false, which gives each conversation a row of its own"
            check_packed(model, self._set.details["context"], "conversations", advice)
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
