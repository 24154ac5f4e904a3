"""Base classes of the workloads that tune a pretrained model on an encoded set."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.config.chat import CausalEvaluationConfig, ChatModelConfig
from trainer.config.labelled import TuningJob
from trainer.data.encoded import encoded_details, require_tokenizer, split_sizes, tokenizer_paths
from trainer.data.order import EpochOrder
from trainer.data.step_plan import make_tuning_plan
from trainer.evaluation.harness_training import TasksInTraining, tasks_in_training
from trainer.evaluation.measurement import Measurement
from trainer.evaluation.metrics import criterion_of
from trainer.models.adapters import add_adapter, restore_adapter
from trainer.models.causal import load_answering
from trainer.models.outline import Outline, Rows, outline_answering
from trainer.models.pretrained import Checkpoint, find_pretrained, identify_base
from trainer.models.quantized import Form, quantize_base
from trainer.models.weights import Base
from trainer.records.plans import TuningPlan
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.parallelize import place_measured
from trainer.training.runtime import Runtime
from trainer.training.sharding import sharding_group
from trainer.training.throughput import flops_per_token

Share = tuple[NDArray[np.int64], float]
"""The samples of a micro-batch, and their weight: 1, or 0 if they do not count."""


class TuningWorkload:
    """The part of a `Workload` that all tuning jobs share; `lengths` are the tokens of each sample."""

    pads = True

    def __init__(
        self,
        job: TuningJob,
        store: Store,
        data: ArtifactRef,
        ranks: int,
        lengths: NDArray[np.int64],
        by_length: bool,
        plan: TuningPlan | None = None,
    ) -> None:
        self._model, self._store, self._key, self._lengths = job.model, store, data.key, lengths
        self._seed, self._evaluation = job.training.seed, job.evaluation
        self.criterion = criterion_of(job.evaluation)
        self.plan = plan or make_tuning_plan(job, split_sizes(encoded_details(store, data.key)), ranks)
        self.order = EpochOrder(job.training.seed, lengths, job.training.global_batch, by_length)

    @property
    def files(self) -> Sequence[Path]:
        return tokenizer_paths(self._store, self._key)

    @property
    def details(self) -> dict[str, Any]:
        return {}  # config.json records the encoded set, whose key changes with another test split

    @property
    def tasks(self) -> TasksInTraining | None:
        return None

    @cached_property
    def base(self) -> Base | None:
        name = self._model.pretrained
        return identify_base(name, find_pretrained(self._store, name)) if self._model.lora else None

    def deal(self, number: int, rank: int) -> tuple[NDArray[np.int64], list[Share]]:
        """The samples of a global batch, and one rank's micro-batches of them.

        Samples are dealt to the ranks in turn, longest first, so that all ranks have about the same work. Every rank
        gets the same number of micro-batches, because ranks with a sharded model gather it together. If the smaller
        last batch of an epoch leaves a rank short, that rank gets a sample of weight 0.
        """
        samples = self.order.examples(number)
        mine, size = samples[rank :: self.plan.ranks], self.plan.micro_batch
        count = -(-len(samples[:: self.plan.ranks]) // size)
        parts = [(mine[start : start + size], 1.0) for start in range(0, len(mine), size)]
        return samples, [*parts, *[(samples[:1], 0.0)] * (count - len(parts))]

    def flops_per_token(self, model: PreTrainedModel) -> float:
        return flops_per_token(model, model.config, int(self._lengths.mean()))

    def close(self) -> None:
        """Nothing to close: the data is small and memory-mapped."""


@contextmanager
def measured_causal(measurement: Measurement, details: dict[str, Any], runtime: Runtime) -> Iterator[PreTrainedModel]:
    """The causal language model of a measurement on an encoded set with these details, placed on every rank's device.

    Raises `TokenizerError` if another run's model has a tokenizer other than the one that encoded the data.
    """
    if not measurement.is_own:
        require_tokenizer(measurement.model, details)
    with placed_causal(measurement.settings, measurement.model, details, runtime) as model:
        yield model


@contextmanager
def placed_causal(
    job: TuningJob, found: Checkpoint, details: dict[str, Any], runtime: Runtime, quantize: Form | None = None
) -> Iterator[PreTrainedModel]:
    """The causal language model of a checkpoint for an encoded set with these details, placed on every rank's device,
    with quantised layers if `quantize` is given.
    """

    def load() -> PreTrainedModel:
        model = load_answering(found.folder, job.model.attention, details, found.beside)
        quantize_base(model, quantize)
        return model

    outline = partial(outline_answering, found.folder, job.model.attention, details)
    with sharding_group(job.training, runtime):
        yield place_measured(job.training, runtime, outline, load)


class CausalTuning(TuningWorkload):
    """The base class for a `ConversationsJob`; `set_details` are the details of its encoded set."""

    set_details: dict[str, Any]
    _model: ChatModelConfig
    _evaluation: CausalEvaluationConfig

    @cached_property
    def tasks(self) -> TasksInTraining | None:
        return tasks_in_training(self._evaluation, self.files)

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        options = self._model
        if options.lora is None:
            return load_answering(self._source(folder), options.attention, self.set_details)
        model = load_answering(self._source(None), options.attention, self.set_details)
        if folder is None:
            add_adapter(model, options.lora, self._seed, quantize=options.quantize)
        else:
            restore_adapter(model, folder, options.quantize)
        return model

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        return outline_answering(self._source(folder), self._model.attention, self.set_details, rows)

    def _source(self, folder: Path | None) -> str:
        return str(folder or find_pretrained(self._store, self._model.pretrained).folder)
