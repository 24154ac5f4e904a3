"""Pretraining of masked language models as the training loop sees it: the same windows, and the loss of hidden tokens."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from trainer.config.training import MaskingConfig
from trainer.data.dataset import Batch, mask_window, predicted_in
from trainer.data.order import stable_key
from trainer.evaluation.masked_loss import evaluate_masked
from trainer.models.causal import build_masked, load_masked, tried_masked
from trainer.models.outline import Outline, Rows
from trainer.models.tokenizer import MaskTokens, load_tokenizer, mask_tokens
from trainer.training.loop import Measured
from trainer.training.runtime import Runtime
from trainer.workloads.pretraining import Pretraining


class MaskedPretraining(Pretraining):
    """The `Workload` of a `PipelineJob` whose objective is masked: data, plan and order are those of any pretraining."""

    @property
    def _masking(self) -> MaskingConfig:
        masks = self._job.training.masks
        assert masks is not None
        return masks

    @cached_property
    def _tokens(self) -> MaskTokens:
        return mask_tokens(load_tokenizer(self._store, self._data.tokenizer.key), self._masking.mask_token)

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        job = self._job
        if folder is not None:
            return load_masked(str(folder), job.model.attention)
        return build_masked(job.model, self._resolve_config(), job.training.seed)

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        return None

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        return tried_masked(model, self._job.training.context, self._tokens.mask_id)

    def read_batch(self, number: int, rank: int) -> Batch:
        """A rank's share of the windows; how each is masked follows from the seed and its number among all samples."""
        batch = super().read_batch(number, rank)
        plan, context, seed = self.plan, self._job.training.context, self._job.training.seed
        first = number * plan.global_batch + rank * (plan.global_batch // plan.ranks)
        micro_batches = []
        for inputs in batch.micro_batches:
            rows = [
                mask_window(window, stable_key(seed, "mask", first + place), self._tokens, self._masking)
                for place, window in enumerate(inputs["input_ids"].numpy().astype(np.int64))
            ]
            first += len(rows)
            stacked = (torch.from_numpy(np.stack(each)) for each in zip(*rows, strict=True))
            micro_batches.append(dict(zip(("input_ids", "labels"), stacked, strict=True)))
        return Batch(micro_batches, plan.global_batch * predicted_in(context, self._masking.fraction), batch.tokens)

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        held_out, job = self._dataset.held_out, self._job
        if not any(corpus.windows for corpus in held_out):
            return None
        scores = evaluate_masked(
            model, held_out, job.training.context, job.evaluation.batch, runtime, self._tokens, self._masking
        )
        details: dict[str, Any] = {"tokens": scores.total.tokens}
        details["corpora"] = {name: score.loss for name, score in scores.corpora.items()}
        assert scores.total.accuracy is not None
        return Measured({"loss": scores.total.loss, "accuracy": scores.total.accuracy}, details)

    def _resolve_config(self) -> PretrainedConfig:
        return self._configure(masked=True)
