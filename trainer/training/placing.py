"""A job's model and its loss on the device and among the ranks: whole on each of them, or divided."""

import logging
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.common.process import return_freed_memory
from trainer.config.jobs import OptimizationConfig
from trainer.models.causal import checkpoint_activations
from trainer.models.outline import own_tensors
from trainer.pretrained.opened import rows_of
from trainer.training.runtime import Runtime, wrap_objective
from trainer.training.sharding import give_memory, let_go, load_rows, rows_held, shard_model
from trainer.training.workload import Workload

log = logging.getLogger(__name__)


class Placed(NamedTuple):
    """A model, and it with its loss. Of one that is divided, the small files of its checkpoints too, by name."""

    model: PreTrainedModel
    objective: nn.Module
    settings: dict[str, bytes]


def place_model(training: OptimizationConfig, workload: Workload, runtime: Runtime, folder: Path | None) -> Placed:
    """The model as the job starts it, or as a folder holds it, ready to be trained."""
    if training.sharding == "fsdp":
        return _divide(training, workload, runtime, folder)
    model = workload.load_model(folder)
    if training.gradient_checkpointing:
        checkpoint_activations(model)
    objective = wrap_objective(
        workload.make_objective(model), runtime, lambda: workload.read_batch(0, runtime.rank).micro_batches[0]
    )
    return Placed(model, objective, {})


def _divide(training: OptimizationConfig, workload: Workload, runtime: Runtime, folder: Path | None) -> Placed:
    outline = workload.outline(folder, lambda rows: rows_of(runtime.rank, runtime.ranks, rows))
    if runtime.any(outline is None):
        outline = None
        if runtime.rank == 0:
            log.warning("the model cannot be made part by part: before it is divided, each rank takes the memory for all of it")
    model = outline.model if outline else workload.load_model(folder)
    settings = describe_model(model)
    if training.gradient_checkpointing:
        checkpoint_activations(model)
    shard_model(model, training, runtime)
    if outline is not None:
        give_memory(model, training, runtime)
        load_rows(model, outline.read)
        del outline  # and what it holds of the weights
    return_freed_memory()  # a block at a time, they were made here
    with runtime.accelerator.autocast():
        objective = workload.make_objective(model)
    let_go(model)  # it was tried
    _cast_in(objective, runtime)
    return Placed(model, objective.train(), settings)


def _cast_in(objective: nn.Module, runtime: Runtime) -> None:
    """Have an objective compute under autocast, as accelerate's wrapper has it do where the model is not divided.

    Families that keep some of what they compute in float32, as state-space models do, leave it to that to fit types together.
    """
    forward = objective.forward

    def cast(*inputs: Any, **named: Any) -> Any:
        with runtime.accelerator.autocast():
            return forward(*inputs, **named)

    objective.forward = cast


def reload_rows(model: PreTrainedModel, workload: Workload, runtime: Runtime, folder: Path) -> None:
    """Fill a sharded model with the weights that a folder holds."""
    outline = workload.outline(folder, lambda rows: rows_of(runtime.rank, runtime.ranks, rows))
    if outline is not None:
        load_rows(model, outline.read)
        return
    whole: dict[str, torch.Tensor] = workload.load_model(folder).state_dict()

    def read(name: str) -> torch.Tensor:
        rows, values = rows_held(held[name]), whole[name]
        return values if rows is None else values[slice(*rows)]

    held = own_tensors(model)
    load_rows(model, read)


def describe_model(model: PreTrainedModel) -> dict[str, bytes]:
    """The files that `save_pretrained` writes beside the weights; of a sharded model, its class would name another one."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, state_dict={})
        return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.json"))}
