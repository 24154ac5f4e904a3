"""Placing a job's model and its loss on the device and across ranks: whole on each rank, or sharded."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.common.process import return_freed_memory
from trainer.common.temporary import temporary_folder
from trainer.config.training import OptimizationConfig
from trainer.models.adapters import is_adapted
from trainer.models.causal import checkpoint_activations
from trainer.models.dropout import draw_fast
from trainer.models.layers import refuse_skipping
from trainer.models.outline import Outline, Rows
from trainer.models.quantized import refuse_quantized
from trainer.models.tensor_rows import own_tensors, rows_of
from trainer.training.runtime import Runtime, wrap_objective
from trainer.training.sharding import COMPUTED_IN, Division, give_memory, load_rows, reshard, rows_held, shard_model
from trainer.training.workload import Workload

log = logging.getLogger(__name__)


MakeOutline = Callable[[Rows], Outline | None]
"""Returns a model's outline for the rows that a rank holds."""


class Placed(NamedTuple):
    """A model, and the module with its loss. For a sharded model, also the small files of its checkpoints by name."""

    model: PreTrainedModel
    objective: nn.Module
    settings: dict[str, bytes]


def place_model(training: OptimizationConfig, workload: Workload, runtime: Runtime, folder: Path | None) -> Placed:
    """The model that training starts with, or that a folder contains, ready to be trained."""
    if training.sharding == "fsdp":
        return _divide(training, workload, runtime, folder)
    model = workload.load_model(folder)
    _require_trainable(model)
    if runtime.ranks > 1 and any(getattr(module, "layerdrop", 0) for module in model.modules()):
        refuse_skipping(model.config)
    _settle(model, training, runtime)
    objective = wrap_objective(
        workload.make_objective(model), runtime, lambda: workload.read_batch(0, runtime.rank).micro_batches[0]
    )
    return Placed(model, objective, {})


def place_measured(
    division: Division, runtime: Runtime, outline: MakeOutline, load: Callable[[], PreTrainedModel]
) -> PreTrainedModel:
    """A finished model for measurement: whole on each rank, or sharded, with weights gathered in their own type.

    Both then compute the same under autocast, and so the figures are the same.
    """
    if division.sharding == "fsdp":
        model, found = _make(runtime, outline, load)
        _share_out(model, found, division, runtime, None)
        return model
    model = load()
    cast(nn.Module, model).to(runtime.device)
    return model


def _divide(training: OptimizationConfig, workload: Workload, runtime: Runtime, folder: Path | None) -> Placed:
    model, outline = _make(runtime, partial(workload.outline, folder), partial(workload.load_model, folder))
    _require_trainable(model)
    settings = describe_model(model)
    _settle(model, training, runtime)
    _share_out(model, outline, training, runtime, COMPUTED_IN[training.precision])
    del outline  # frees the weights that it holds
    return_freed_memory()  # the weights were built here, one block at a time
    with runtime.accelerator.autocast():
        objective = workload.make_objective(model)
    reshard(model)  # `make_objective` has run it
    _cast_in(objective, runtime)
    return Placed(model, objective.train(), settings)


def _require_trainable(model: PreTrainedModel) -> None:
    """Raise `ConfigError` if training would not change a model's weights, which are quantised."""
    if not is_adapted(model):
        refuse_quantized(model)


def _settle(model: PreTrainedModel, training: OptimizationConfig, runtime: Runtime) -> None:
    """Configure how a model computes its activations."""
    if training.gradient_checkpointing:
        checkpoint_activations(model)
    if runtime.device.type == "cpu":
        draw_fast(model)


def _make(
    runtime: Runtime, outline: MakeOutline, load: Callable[[], PreTrainedModel]
) -> tuple[PreTrainedModel, Outline | None]:
    """A model to be sharded: its outline, or the whole model on each rank if any rank has no outline."""
    found = outline(lambda rows: rows_of(runtime.rank, runtime.ranks, rows))
    if not runtime.any(found is None) and found is not None:
        return found.model, found
    if runtime.rank == 0:
        log.warning(
            "the model cannot be built in parts: each rank needs memory for the whole model before it is sharded"
        )
    return load(), None


def _share_out(
    model: PreTrainedModel, outline: Outline | None, division: Division, runtime: Runtime, dtype: torch.dtype | None
) -> None:
    """Shard a model across the ranks; with an outline, each rank reads its own rows."""
    shard_model(model, division, runtime, dtype)
    if outline is not None:
        give_memory(model, division, runtime)
        load_rows(model, outline.read)


def _cast_in(objective: nn.Module, runtime: Runtime) -> None:
    """Make an objective compute under autocast, as accelerate's wrapper does for models that are not sharded.

    Families that compute partly in float32, such as state-space models, rely on autocast to match types.
    """
    forward = objective.forward

    def cast(*inputs: Any, **named: Any) -> Any:
        with runtime.accelerator.autocast():
            return forward(*inputs, **named)

    objective.forward = cast


def reload_rows(model: PreTrainedModel, workload: Workload, runtime: Runtime, folder: Path) -> None:
    """Load the weights in a folder into a sharded model."""
    source, outline = _make(runtime, partial(workload.outline, folder), partial(workload.load_model, folder))
    if outline is not None:
        load_rows(model, outline.read)
        return
    tensors: dict[str, torch.Tensor] = own_tensors(model)
    whole: dict[str, torch.Tensor] = source.state_dict()

    def read(name: str) -> torch.Tensor:
        rows, values = rows_held(tensors[name]), whole[name]
        return values if rows is None else values[slice(*rows)]

    load_rows(model, read)


def describe_model(model: PreTrainedModel) -> dict[str, bytes]:
    """The files that `save_pretrained` writes beside the weights; a sharded model's name a different class."""
    with temporary_folder() as folder:
        model.save_pretrained(folder, state_dict={})
        return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.json"))}
