"""What a checkpoint may hold of optimizer, schedule and scaler: looked at before any of it is loaded.

A checksum says that a file is the one that was written, not that what was written can be.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue
from torch import nn

from trainer.common.errors import ArtifactError
from trainer.pretrained.tensor_files import Tensor, read_tensors
from trainer.store.manifest import Manifest
from trainer.store.storage import Store

OPTIMIZER = "optimizer.safetensors"


class Group(BaseModel):
    """Parameters with settings of their own, by their names in the objective; torch decides which other settings there are."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]

    params: list[str]
    lr: FiniteFloat = Field(ge=0, strict=True)


class Computed(BaseModel):
    """With how many threads, None on a GPU, and on how many ranks a checkpoint was computed."""

    model_config = ConfigDict(extra="forbid")

    threads: int | None = Field(ge=1)
    ranks: int = Field(ge=1)


class Settings(BaseModel):
    """What state.json holds beside the position."""

    model_config = ConfigDict(extra="forbid")

    optimizer: list[Group] = Field(min_length=1)
    schedule: dict[str, JsonValue]
    scaler: dict[str, JsonValue] | None
    computed: Computed | None = None


def find_misfit(store: Store, key: str, manifest: Manifest, settings: Settings) -> str | None:
    """Why the moments in a checkpoint's optimizer cannot be those of its model, or None. Raises `ArtifactError` if damaged."""
    sizes = {record.name: record.size for record in manifest.files}
    if OPTIMIZER not in sizes:
        return f"{store.path(key)}/{OPTIMIZER} is not listed in its manifest"
    weights: dict[str, Tensor] = {}
    for name in sizes:
        if name.endswith(".safetensors") and name != OPTIMIZER:
            weights |= read_tensors(store, f"{key}/{name}", sizes[name])
    known = {name for group in settings.optimizer for name in group.params}
    for full, moment in read_tensors(store, f"{key}/{OPTIMIZER}", sizes[OPTIMIZER]).items():
        parameter = full.rpartition("/")[0]
        if parameter not in known:
            return f"{store.path(key)}/{OPTIMIZER} holds {full!r}, which is of no parameter that state.json names"
        weight = weights.get(parameter.removeprefix("model."))  # some families save weights under other names
        if weight is not None and not _fits(moment.shape, weight.shape):
            return f"{store.path(key)}/{OPTIMIZER} holds {full!r} of shape {moment.shape} for a weight of shape {weight.shape}"
    return None


def _fits(moment: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether a moment is a number, of a weight's shape, or, as Adafactor's, of its rows or columns."""
    return moment in ((), (1,)) or (
        len(moment) == len(weight) and all(m in (1, w) for m, w in zip(moment, weight, strict=True))
    )


def parameter_names(objective: nn.Module) -> dict[torch.Tensor, str]:
    """The names of an objective's parameters, as checkpoints have them: without that of DDP's wrapper."""
    return {parameter: name.removeprefix("module.") for name, parameter in objective.named_parameters()}


def require_groups(groups: list[Group], objective: nn.Module, optimizer: torch.optim.Optimizer, place: Path) -> None:
    """Raise `ValueError` if groups saved in `place` are not of the parameters that an optimizer has.

    Raises `ArtifactError` if they are, but divided otherwise, as by another version that decays others: their settings would
    be those of the wrong group.
    """
    names = parameter_names(objective)
    now = {names[p]: number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    then = {name: number for number, group in enumerate(groups) for name in group.params}
    if other := now.keys() ^ then.keys():
        raise ValueError(f"the optimizer's parameters differ by {', '.join(sorted(other)[:3])}")
    if moved := sorted(name for name in now if now[name] != then[name]):
        raise ArtifactError(
            f"{place}: the optimizer's groups of parameters are not those of this version, which decays others "
            f"({', '.join(moved[:3])}); set another `run` to start anew, or `resume: fork` to keep the weights"
        )


def require_schedule(schedule: Any, step: int) -> None:
    """Raise `ValueError` if a schedule does not stand at a step: it goes on only with steps that change the weights."""
    if schedule.last_epoch != step:
        raise ValueError(f"the schedule stands at step {schedule.last_epoch}, training at {step}")
