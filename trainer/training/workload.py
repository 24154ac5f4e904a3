"""What a kind of job brings to the one training loop."""

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
    """Validation figures by name, `loss` among them, and what else a record of them says."""

    scores: dict[str, float]
    details: dict[str, Any]


class Tasks(Protocol):
    """What else measures a model on the way, every so many steps: lm-eval's tasks."""

    @property
    def every(self) -> int | None:
        """Steps between two measurements, besides those before the first step and after the last."""

    def ask(self, model: PreTrainedModel, runtime: Runtime) -> dict[str, float]:
        """Figures by task, `TASK/FIGURE`, the same on every rank. Raises `StopRequested` on all if one is to stop."""


class Workload(Protocol):
    """Data in its order, a model, its loss and its measure. Every rank has one."""

    @property
    def plan(self) -> Plan:
        """The length of the run."""

    @property
    def criterion(self) -> Criterion:
        """What says which checkpoint is best."""

    @property
    def files(self) -> Sequence[Path]:
        """Files to publish beside the model: its tokenizer."""

    @property
    def pads(self) -> bool:
        """Whether micro-batches are as long as their longest row, so that their shapes vary."""

    @property
    def details(self) -> dict[str, Any]:
        """What the final model's manifest says of its making."""

    @property
    def base(self) -> Base | None:
        """The model that an adapter is trained beside; None where all weights are trained. Read on the first rank."""

    @property
    def tasks(self) -> Tasks | None:
        """What measures the model on the way besides, if something does."""

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        """The model as the job starts it, or as a checkpoint's folder holds it."""

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        """The same for ranks that hold some rows of each weight; None if it must be loaded whole and then divided."""

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        """The model with its loss: called with a micro-batch's inputs, it gives the sum over the targets."""

    def read_batch(self, number: int, rank: int) -> Batch:
        """A rank's share of global batch `number`: a pure function of its arguments."""

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured | None:
        """Figures on held-out data, the same on every rank, or None if nothing is held out."""

    def flops_per_token(self, model: PreTrainedModel) -> float:
        """Arithmetic of training on one token."""

    def close(self) -> None:
        """Let go of the data; it is opened again if it is read again."""


class TrainingKind(Protocol):
    """What training asks of a job's kind. The functions take jobs and data of that kind."""

    @property
    def prepare(self) -> Callable[[Any, Do], TrainingData]:
        """What the job trains on: its pipeline up to there."""

    @property
    def identify(self) -> Callable[[Any, Any], Run]:
        """The run that a job and its data make."""

    @property
    def open(self) -> Callable[[Any, Store, Any, int], Workload]:
        """The workload of a job and its data for so many ranks."""
