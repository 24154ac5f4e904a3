"""The interface between a kind of job and the training loop."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn
from transformers import PreTrainedModel

from trainer.data.dataset import Batch
from trainer.models.outline import Outline, Rows
from trainer.models.weights import Base
from trainer.records.evaluations import Criterion
from trainer.records.plans import Plan
from trainer.records.steps import Do
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData
from trainer.training.runtime import Runtime


class Measured(NamedTuple):
    """Validation figures by name, including `loss`, and other fields of their record."""

    scores: dict[str, float]
    details: dict[str, Any]


class Tasks(Protocol):
    """Further measurements of a model during training: lm-eval's tasks."""

    @property
    def every(self) -> int | None:
        """Steps between two measurements, in addition to those before the first step and after the last."""

    @property
    def identities(self) -> dict[str, str]:
        """By task, a fingerprint of what determines its figures."""

    def ask(self, model: PreTrainedModel, runtime: Runtime) -> dict[str, float]:
        """Figures by `TASK/FIGURE`, the same on every rank. Raises `StopRequested` on all ranks if one must stop."""


class Workload(Protocol):
    """Data in its order, a model, its loss and its measurement. Every rank has one."""

    @property
    def plan(self) -> Plan:
        """The length of the run."""

    @property
    def criterion(self) -> Criterion:
        """The rule for the best checkpoint."""

    @property
    def files(self) -> Sequence[Path]:
        """Files to publish beside the model: its tokenizer."""

    @property
    def pads(self) -> bool:
        """Whether micro-batches are padded to their longest row, so that their shapes vary."""

    @property
    def details(self) -> dict[str, Any]:
        """Details for the final model's manifest."""

    @property
    def base(self) -> Base | None:
        """The base model of an adapter; None if all weights are trained. Read on the first rank."""

    @property
    def tasks(self) -> Tasks | None:
        """The lm-eval tasks that measure the model during training, if any."""

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        """The model that training starts with, or that a checkpoint's folder contains."""

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        """The same for ranks that hold some rows of each weight; None if it must be loaded whole before sharding."""

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        """The model with its loss: called with a micro-batch's inputs, it returns the sum over the targets."""

    def read_batch(self, number: int, rank: int) -> Batch:
        """A rank's share of global batch `number`: a pure function of its arguments."""

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        """Figures on held-out data, the same on every rank, or None if nothing is held out."""

    def flops_per_token(self, model: PreTrainedModel) -> float:
        """Floating-point operations to train on one token."""

    def close(self) -> None:
        """Close the data; it is opened again if it is read again."""


class TrainingKind(Protocol):
    """The functions of a job's kind that training needs. They take jobs and data of that kind."""

    @property
    def prepare(self) -> Callable[[Any, Do], TrainingData]:
        """Run the steps up to the job's training data, and return that data."""

    @property
    def identify(self) -> Callable[[Any, Any], Run]:
        """Return the run that a job and its data identify."""

    @property
    def open(self) -> Callable[[Any, Store, Any, int], Workload]:
        """Open the workload of a job and its data for this number of ranks."""
