"""What the workloads share that tune a pretrained model on an encoded set."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.config.labelled import TuningJob
from trainer.data.encoded import tokenizer_paths
from trainer.data.order import EpochOrder
from trainer.models.pretrained import find_model, identify_base
from trainer.models.weights import Base
from trainer.records.plans import ChatPlan, FinetunePlan
from trainer.store.storage import Store
from trainer.training.loop import flops_per_token

Share = tuple[NDArray[np.int64], float]
"""The samples of a micro-batch, and whether they count: 1 or 0."""


class TuningWorkload:
    """The part of a `Workload` that is the same for every job that tunes a model; `lengths` are the tokens of each
    sample.
    """

    def __init__(
        self,
        job: TuningJob,
        store: Store,
        key: str,
        plan: FinetunePlan | ChatPlan,
        lengths: NDArray[np.int64],
        by_length: bool,
    ) -> None:
        self._model, self._store, self._key, self._lengths = job.model, store, key, lengths
        self.plan = plan
        self.order = EpochOrder(job.training.seed, lengths, job.training.global_batch, by_length)

    @property
    def files(self) -> Sequence[Path]:
        return tokenizer_paths(self._store, self._key)

    @property
    def details(self) -> dict[str, Any]:
        return {}  # config.json names the encoded set, which becomes another one with another test split

    @cached_property
    def base(self) -> Base | None:
        name = self._model.pretrained
        return identify_base(name, find_model(self._store, name, hub=True)) if self._model.lora else None

    def deal(self, number: int, rank: int) -> tuple[NDArray[np.int64], list[Share]]:
        """The samples of a global batch, and a rank's micro-batches of them.

        They are dealt to the ranks in turn, longest first, so that all have about as much to do.

        All have as many micro-batches, as ranks that share a model gather it together: where an epoch's smaller batch
        has fewer samples for some, or none, these take one that does not count.
        """
        samples = self.order.examples(number)
        mine, size = samples[rank :: self.plan.ranks], self.plan.micro_batch
        count = -(-len(samples[:: self.plan.ranks]) // size)
        parts = [(mine[start : start + size], 1.0) for start in range(0, len(mine), size)]
        return samples, [*parts, *[(samples[:1], 0.0)] * (count - len(parts))]

    def flops_per_token(self, model: PreTrainedModel) -> float:
        return flops_per_token(model, model.config, int(self._lengths.mean()))

    def close(self) -> None:
        """Its data is mapped, and small."""
