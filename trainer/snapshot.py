"""Snapshots of the training state at a step boundary, for the background writer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.checkpoint import TrainState
from trainer.saved_settings import parameter_names


class HostCopies:
    """Copies of tensors in host memory that is kept from one snapshot to the next.

    Filling memory that is new takes several times as long (the system hands it out page by page), and a GPU copies fastest
    to memory that is page-locked.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], torch.Tensor] = {}

    def take(self, kind: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies on the CPU, over those that were taken before by these names; tied weights go on sharing their memory."""
        copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
        result = {}
        for name, tensor in tensors.items():
            identity = (tensor.data_ptr(), tensor.shape)
            if identity not in copies:
                copies[identity] = self._room(kind, name, tensor).copy_(tensor.detach(), non_blocking=True)
            result[name] = copies[identity]
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return result

    def _room(self, kind: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        copy = self._copies.get((kind, name))
        if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[kind, name] = copy
        return copy


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that a checkpoint holds, which training no longer touches."""

    state: TrainState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    settings: dict[str, Any]
    epoch: int | None

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
) -> Snapshot:
    """Copy the training state off the device, over the snapshot that was taken into these copies before.

    `computed` says with how many threads and ranks. Every rank has the whole state, so one of them is enough.
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
    weights = copies.take("weights", model.state_dict())
    return Snapshot(state.model_copy(), weights, copies.take("optimizer", moments), settings, epoch)
