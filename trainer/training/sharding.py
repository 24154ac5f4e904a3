"""Models whose weights, gradients and optimizer are sharded across the ranks with PyTorch's FSDP2.

Each block, and everything outside the blocks, is a unit: its weights are gathered before use and freed afterwards. A
rank keeps the rows `rows_of` of each weight. This module calls torch directly, because accelerate's plugin silently
uses DDP on a CPU.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import PreTrainedModel

from trainer.models.layers import require_blocks
from trainer.models.tensor_rows import RowRange, own_tensors, rows_of
from trainer.training.runtime import Runtime

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Backend by device type. Tensors in host memory (the fp16 scaler's check for finite gradients) cannot use NCCL."""

COMPUTED_IN = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Division(Protocol):
    """A job's settings for sharding."""

    @property
    def sharding(self) -> str: ...
    @property
    def cpu_offload(self) -> bool: ...


class LocalPart(NamedTuple):
    """The tensors that a rank holds, by name, and for sharded ones, which rows."""

    tensors: dict[str, torch.Tensor]
    row_ranges: dict[str, RowRange]


@contextmanager
def sharding_group(division: Division, runtime: Runtime) -> Iterator[None]:
    """A process group of this process alone, inside the block, if a model is sharded and no launcher started any."""
    if division.sharding == "none" or dist.is_initialized():
        yield
        return
    dist.init_process_group(BACKENDS[runtime.device.type], store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard_model(model: PreTrainedModel, division: Division, runtime: Runtime, dtype: torch.dtype | None) -> None:
    """Shard a model's weights across the ranks, in place. They are stored in float32 and gathered as `dtype`, by
    default float32 too.

    Gradients are summed over the ranks in float32. Raises `ConfigError` if the model has no blocks.
    """
    blocks = require_blocks(model, model.config.model_type)
    device = runtime.device.type
    options: dict[str, Any] = {
        "mesh": DeviceMesh.from_group(dist.new_group(backend=BACKENDS[device]), device),
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
        "offload_policy": CPUOffloadPolicy(pin_memory=device != "cpu") if division.cpu_offload else OffloadPolicy(),
    }
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)


def load_rows(model: PreTrainedModel, read: Callable[[str], torch.Tensor]) -> None:
    """Fill this rank's rows of each weight, and the saved buffers, with what `read` returns for their names."""
    with torch.no_grad():
        for name, tensor in own_tensors(model).items():
            local_rows(tensor).copy_(read(name))


def give_memory(model: PreTrainedModel, division: Division, runtime: Runtime) -> None:
    """Allocate this rank's rows of a model on `meta`, and move its buffers, which are not on it, to the device."""
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    model.to_empty(device=torch.device("cpu") if division.cpu_offload else runtime.device)
    for module, name, buffer in buffers:
        module._buffers[name] = None if buffer is None else buffer.to(runtime.device)


def sharded_model(objective: nn.Module) -> FSDPModule | None:
    """The model of an objective if it is sharded, else None."""
    model = getattr(objective, "model", None)
    return model if isinstance(model, FSDPModule) else None


def is_sharded(model: nn.Module) -> bool:
    """Whether the model is sharded, so that every rank must take part when it computes."""
    return isinstance(model, FSDPModule)


def reshard(model: nn.Module) -> None:
    """Free parameters gathered outside a step, so that the model has the parameters that the optimizer knows again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def unsynchronised(objective: nn.Module, runtime: Runtime) -> Iterator[None]:
    """Skip summing gradients over the ranks during accumulation: until the last micro-batch, each rank keeps the whole
    model's gradients.
    """
    model = sharded_model(objective)
    if model is None:
        with runtime.accelerator.no_sync(objective):
            yield
        return
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def clip_gradients(objective: nn.Module, limit: float, runtime: Runtime) -> torch.Tensor:
    """Scale the gradients so that their total norm is at most `limit`; returns the norm before."""
    if sharded_model(objective) is None:
        norm: torch.Tensor = runtime.accelerator.clip_grad_norm_(objective.parameters(), limit)
        return norm
    runtime.accelerator.unscale_gradients()
    gradients = [local_rows(p.grad) for p in objective.parameters() if p.grad is not None]
    own = torch.nn.utils.get_total_norm(gradients)
    norm = runtime.sum(own.float().square().cpu()).sqrt()
    if limit < float("inf"):
        scale = torch.clamp(limit / (norm + 1e-6), max=1.0)  # as in torch.nn.utils.clip_grad_norm_
        torch._foreach_mul_(gradients, float(scale))
    return norm


def norms_of(gradients: Iterable[torch.Tensor], runtime: Runtime) -> torch.Tensor:
    """The norm of each gradient, sharded or not."""
    found = list(gradients)
    norms = torch.stack([local_rows(each).float().norm() for each in found])
    if not any(isinstance(each, DTensor) for each in found):
        return norms
    return runtime.sum(norms.square().cpu()).sqrt()


def local_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A rank's rows of a sharded tensor; all of any other tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_part(tensors: Mapping[str, torch.Tensor], runtime: Runtime) -> LocalPart:
    """The tensors that this rank must save: its rows of sharded ones, and on rank 0 also those that are not sharded."""
    part = LocalPart({}, {})
    for name, tensor in tensors.items():
        row_range = row_range_of(name, tensor)
        if row_range is None and runtime.rank == 0:
            part.tensors[name] = local_rows(tensor)
        elif row_range is not None and (len(local_rows(tensor)) or runtime.rank == 0):
            part.tensors[name], part.row_ranges[name] = local_rows(tensor), row_range
    return part


def row_range_of(name: str, tensor: torch.Tensor) -> RowRange | None:
    """The rows of a tensor that this rank has; None if every rank has all of it."""
    rows = rows_held(tensor)
    if rows is None:
        return None
    if len(local_rows(tensor)) != rows[1] - rows[0]:
        raise RuntimeError(
            f"this rank holds {len(local_rows(tensor))} rows of {name}; expected rows {rows[0]} to {rows[1]}"
        )
    return RowRange(rows[0], tuple(tensor.shape))


def rows_held(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The first row of a tensor that this rank holds, and the one after the last; None if it is not sharded."""
    if not isinstance(tensor, DTensor) or tensor.placements == (Replicate(),):
        return None
    if tensor.placements != (Shard(0),):
        raise RuntimeError(f"a tensor is sharded as {tensor.placements}; expected rows (Shard(0))")
    return rows_of(tensor.device_mesh.get_local_rank(), tensor.device_mesh.size(), tensor.shape[0])


def divided_as(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A rank's rows as a tensor sharded like `weight`."""
    assert isinstance(weight, DTensor)
    rows = rows.to(local_rows(weight).device)
    return DTensor.from_local(rows, weight.device_mesh, weight.placements, shape=weight.shape, stride=weight.stride())
