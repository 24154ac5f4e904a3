"""The workload of fine-tuning: labelled examples in their order, and the loss of a label."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from trainer.config.labelled import FinetuneJob
from trainer.data.dataset import Batch
from trainer.data.labelled.encoded import EncodedSplit, find_class_weights, open_encoded
from trainer.kinds.labelled.measure import example_losses, positive_figures, predict, score
from trainer.kinds.tuning_workload import TuningWorkload
from trainer.models.causal import check_one_scale
from trainer.models.classifiers import load_classifier, outline_classifier
from trainer.models.outline import Outline, Rows
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.workload import Measured


class LabelLoss(nn.Module):
    """A classifier and its loss in one module, so that both are wrapped, cast and compiled together.

    `class_weights`, of shape [C], and `smoothing` are those of `torch.nn.functional.cross_entropy`.
    """

    class_weights: torch.Tensor | None

    def __init__(
        self, model: PreTrainedModel, class_weights: torch.Tensor | None = None, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.model, self._smoothing = model, smoothing
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, labels: torch.Tensor, weights: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Sum over the batch of weight times -log p(label), or times the squared error; shapes [B], [B], [B, T].

        Where each word has a label, labels have shape [B, T].
        """
        logits = self.model(**inputs).logits.float()
        by_class = self.class_weights
        if by_class is not None:
            by_class = by_class.to(logits.device)  # a sharded model's buffer may be on another device
        return (example_losses(logits, labels, by_class, self._smoothing) * weights).sum()


class Finetuning(TuningWorkload):
    """The `Workload` of a `FinetuneJob`."""

    def __init__(self, job: FinetuneJob, store: Store, data: ArtifactRef, ranks: int) -> None:
        self._job, self._set = job, open_encoded(store, data.key)
        self._train = self._set.splits["train"]
        super().__init__(job, store, data, ranks, self._train.lengths, job.training.group_by_length)
        self._class_weights: list[float] | None = None  # all weigh the same
        if wanted := job.training.class_weights:
            details = self._set.details
            counts = details["splits"]["train"]["class_counts"]
            self._class_weights = find_class_weights(wanted, details["classes"], counts)

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        return load_classifier(self._store, self._job, self._set.details, folder)

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        if folder is None:  # transformers initialises a new head while it loads the other weights
            return None
        return outline_classifier(self._job, self._set.details, folder, rows)

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        longest = max(int(split.lengths.max()) for split in self._set.splits.values() if len(split))
        check_one_scale(model.config, longest, "data.max_length")
        weights = self._class_weights
        by_class = None if weights is None else torch.tensor(weights, dtype=torch.float32)
        return LabelLoss(model, by_class, self._job.training.label_smoothing)

    def read_batch(self, number: int, rank: int) -> Batch:
        examples, assigned = self.deal(number, rank)
        micro_batches = [
            {**read_inputs(self._train, part), "weights": torch.full([len(part)], weight)} for part, weight in assigned
        ]
        return Batch(micro_batches, self._weigh(examples), int(self._train.lengths[examples].sum()))

    def _weigh(self, examples: NDArray[np.int64]) -> float:
        """The divisor of a batch's loss: its number of examples or words, or the sum of their class weights, as in
        torch.
        """
        rows = self._train.rows(examples)
        if self._class_weights is None:
            return len(rows)
        return float(np.array(self._class_weights)[self._train.labels[rows]].sum())

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        held_out = self._set.splits["validation"]
        logits = predict(model, held_out, self._job.evaluation.batch, runtime)
        positive = set(positive_figures(self._job, self._set.details["classes"]).values())
        details = {"examples": len(held_out), **({"positive": positive.pop()} if positive else {})}
        return Measured(score(logits, self._set, "validation", self._job, runtime), details)


def read_inputs(split: EncodedSplit, examples: NDArray[np.int64]) -> dict[str, torch.Tensor]:
    """Inputs of the objective for some examples: padded inputs of shape [B, T], and labels of shape [B], or [B, T] for
    words.
    """
    inputs = {name: torch.from_numpy(values) for name, values in split.read(examples).items()}
    return {**inputs, "labels": torch.from_numpy(split.batch_labels(examples, inputs["input_ids"].shape[1]))}
