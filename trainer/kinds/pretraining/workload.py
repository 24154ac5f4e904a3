"""The workload of pretraining: windows over mixed corpora, and the loss of the next or of masked tokens."""

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from trainer.config.jobs import PipelineJob
from trainer.config.models import ModelConfig
from trainer.config.training import MaskingConfig
from trainer.data.dataset import Batch, Dataset, mask_window, open_dataset, predicted_in, read_batch
from trainer.data.order import stable_key
from trainer.data.step_plan import plan_run
from trainer.evaluation.harness_training import TasksInTraining, tasks_in_training
from trainer.evaluation.metrics import criterion_of
from trainer.kinds.pretraining.measure import TextScores, evaluate
from trainer.models.adapters import restore_adapter
from trainer.models.causal import (
    build_model,
    check_same_vocabulary,
    load_model,
    located,
    resolve_config,
    tried_masked,
)
from trainer.models.outline import Outline, Rows, outline_files, outline_new
from trainer.models.pretrained import find_pretrained, identify_base
from trainer.models.taken_tokenizer import PLAIN_CLASS, find_other_class
from trainer.models.tokenizer import MaskTokens, load_tokenizer, mask_tokens, tokenizer_files
from trainer.models.trial import tried_objective
from trainer.models.weights import Base
from trainer.records.plans import PreparedData
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.throughput import flops_per_token
from trainer.training.workload import Measured

log = logging.getLogger(__name__)


class Pretraining:
    """The `Workload` of a `PipelineJob`."""

    pads = False

    def __init__(self, job: PipelineJob, store: Store, data: PreparedData, ranks: int) -> None:
        self._job, self._store, self._data = job, store, data
        self.plan = plan_run(store, data, job, ranks)
        self.criterion = criterion_of(job.evaluation)

    @property
    def files(self) -> Sequence[Path]:
        return tokenizer_files(self._store, self._data.tokenizer.key)

    @property
    def details(self) -> dict[str, Any]:
        return {"context": self._job.training.context, "shards": [ref.key for ref in self._data.shards]}

    @cached_property
    def tasks(self) -> TasksInTraining | None:
        return tasks_in_training(self._job.evaluation, self.files)

    @cached_property
    def _dataset(self) -> Dataset:
        job = self._job
        return open_dataset(self._store, self._data, job.training, self.plan, job.evaluation.during_training)

    @cached_property
    def base(self) -> Base | None:
        name = self._job.model.pretrained
        if self._job.model.lora is None or name is None:
            return None
        return identify_base(name, find_pretrained(self._store, name))

    @cached_property
    def _model(self) -> ModelConfig:
        return located(self._store, self._job.model)

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        job = self._job
        if folder is None:
            return build_model(self._model, self._resolve_config(), job.training.seed)
        if job.model.lora is None or self._model.pretrained is None:
            return load_model(folder, job.model.attention)
        model = load_model(self._model.pretrained, job.model.attention)
        restore_adapter(model, folder, job.model.quantize)
        return model

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        job = self._job
        if folder is not None:
            return outline_files(str(folder), job.model.attention, rows)
        config = self._resolve_config()
        if self._model.pretrained is not None:
            return outline_files(self._model.pretrained, job.model.attention, rows)
        return outline_new(config, job.model.attention, job.training.seed, rows)

    def _resolve_config(self) -> PretrainedConfig:
        """The configuration of the model that training starts with, checked against its tokenizer."""
        job, training = self._job, self._job.training
        tokenizer = load_tokenizer(self._store, self._data.tokenizer.key)
        masked, apart = training.masks is not None, training.masks_documents
        config = resolve_config(self._model, tokenizer, training.context, masked, apart)
        if job.model.pretrained is not None and self._model.pretrained is not None:
            check_same_vocabulary(job.model.pretrained, self._model.pretrained, tokenizer)
        if other := find_other_class(tokenizer.json, config.model_type):
            log.warning(
                "for a %r model, `AutoTokenizer.from_pretrained` loads the data's tokenizer as %s, which gives other "
                "ids than the model is trained on: load it with `%s.from_pretrained`, or choose another model_type",
                config.model_type, other, PLAIN_CLASS,
            )  # fmt: skip
        return config

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        return tried_objective(model, self._job.model, self._job.training)

    def read_batch(self, number: int, rank: int) -> Batch:
        return read_batch(number, self.plan, self._dataset.order, self._dataset.windows, rank)

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        held_out = self._dataset.held_out
        if not any(corpus.windows for corpus in held_out):
            return None
        context, batch = self._job.training.context, self._job.evaluation.batch
        return Measured(*_figures(evaluate(model, held_out, context, batch, runtime, masking=self._hidden())))

    def _hidden(self) -> tuple[MaskTokens, MaskingConfig] | None:
        """The tokens that are hidden from the model, and how; None for a causal model."""
        return None

    def close(self) -> None:
        if "_dataset" in self.__dict__:
            self._dataset.close()

    def flops_per_token(self, model: PreTrainedModel) -> float:
        return flops_per_token(model, model.config, self._job.training.context)


class MaskedPretraining(Pretraining):
    """The `Workload` of a `PipelineJob` whose objective is masked; data, plan and order are the same as for causal."""

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
            return load_model(folder, job.model.attention, kind=AutoModelForMaskedLM)
        return build_model(self._model, self._resolve_config(), job.training.seed, AutoModelForMaskedLM)

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        return None

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        return tried_masked(model, self._job.training.context, self._tokens.mask_id)

    def read_batch(self, number: int, rank: int) -> Batch:
        """A rank's share of the windows; the mask of each follows from the seed and its number among all samples."""
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

    def _hidden(self) -> tuple[MaskTokens, MaskingConfig] | None:
        return self._tokens, self._masking


def _figures(scores: TextScores) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures of all held-out text that selection can use, and details: counts, and figures by corpus."""
    total, by_corpus = scores.total, {name: each.figures for name, each in scores.groups.items()}
    figures = {name: value for name, value in total.figures.items() if name != "perplexity"}
    details = {name: value for name, value in total.counts.items() if name != "windows"}
    by_loss = {"corpora": {name: each["loss"] for name, each in by_corpus.items()}}
    if "bits_per_byte" not in figures:
        return figures, {**details, **by_loss}
    return figures, {
        **details, **by_loss,
        "corpora_bits_per_byte": {name: each.get("bits_per_byte") for name, each in by_corpus.items()},
    }  # fmt: skip


def open_workload(job: PipelineJob, store: Store, data: PreparedData, ranks: int) -> Pretraining:
    """The workload of a job on shards."""
    kind = MaskedPretraining if job.training.objective == "masked" else Pretraining
    return kind(job, store, data, ranks)
