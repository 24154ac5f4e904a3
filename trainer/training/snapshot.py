"""Snapshots of the training state at a step boundary, for the background writer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.models.adapters import trained_tensors
from trainer.models.opened import Stretch
from trainer.models.outline import own_tensors
from trainer.training.checkpoint import TrainState
from trainer.training.host_copies import HostCopies
from trainer.training.restoring import parameter_names
from trainer.training.sharding import LocalPart


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that a checkpoint holds, which training no longer touches."""

    state: TrainState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    settings: dict[str, Any]
    epoch: int | None
    stretches: dict[str, Stretch] = field(default_factory=dict)
    """The rows that this rank has of what is divided among the ranks, by name: of weights, and of the optimizer's tensors."""

    def size(self) -> int:
        """Bytes of its tensors, which are nearly all that it takes on disk; tied weights count once."""
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in [*self.weights.values(), *self.optimizer.values()]}
        return sum(tensors.values())


def take_snapshot(
    copies: HostCopies,
    state: TrainState,
    model: PreTrainedModel,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Any,
    scaler: Any,
    epoch: int | None,
    computed: dict[str, Any] | None = None,
    own_part: Callable[[Mapping[str, torch.Tensor]], LocalPart] | None = None,
) -> Snapshot:
    """Copy the training state off the device, over the snapshot that was taken into these copies before.

    `computed` says with how many threads and ranks. Every rank has the whole state, so one of them is enough;
    of a model that is divided among them, each takes its `own_part`. Of a model with an adapter the adapter is all.
    `optimizer.safetensors` names a tensor by its parameter's name in the objective and its own
    ("transformer.wte.weight/exp_avg"), as `torch.distributed.checkpoint.state_dict` does.
    """
    names = parameter_names(objective)
    moments = {
        f"{names[parameter]}/{name}": value
        for parameter, values in optimizer.state.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)  # SGD without momentum has None
    }
    settings = {
        "optimizer": [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups],
        "schedule": schedule.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
        "computed": computed,
    }
    if own_part is None:
        weights = copies.take("weights", trained_tensors(model))
        return Snapshot(state.model_copy(), weights, copies.take("optimizer", moments), settings, epoch)
    model_part, optimizer_part = own_part(own_tensors(model)), own_part(moments)
    weights, moments = copies.take("weights", model_part.tensors), copies.take("optimizer", optimizer_part.tensors)
    return Snapshot(state.model_copy(), weights, moments, settings, epoch, model_part.stretches | optimizer_part.stretches)
