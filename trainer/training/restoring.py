"""Restoring training from a checkpoint: optimizer, schedule, scaler and position. Weights are loaded with the model.

`find_checkpoint` in checkpoint.py chooses the checkpoint.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import nn

from trainer.common.display import some
from trainer.common.errors import ArtifactError, in_one_line
from trainer.models import tensor_files
from trainer.models.tensor_files import find_parts
from trainer.models.tensor_rows import Tensors
from trainer.training.checkpoint import OPTIMIZER, STATE, Group, Saved, TrainState, read_state
from trainer.training.sharding import divided_as, rows_held


def restore(folder: Path, objective: Any, optimizer: Any, schedule: Any, scaler: Any) -> TrainState:
    """Load optimizer, schedule, scaler and position from a checkpoint; its weights are loaded with the model.

    Raises `ArtifactError` if they do not fit this objective.
    """
    try:
        return _restore(folder, objective, optimizer, schedule, scaler)
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError, SafetensorError) as error:
        reason = in_one_line(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise ArtifactError(
            f"{folder}: {STATE} and {OPTIMIZER} do not fit the trained model ({reason}); move that folder away to "
            "continue from the previous checkpoint"
        ) from error


def _restore(folder: Path, objective: Any, optimizer: Any, schedule: Any, scaler: Any) -> TrainState:
    saved = read_state(folder)
    checked = Saved(**saved)
    require_groups(checked.settings.optimizer, objective, optimizer, folder / STATE)
    load_optimizer(Tensors(optimizer_files(folder)), saved["settings"]["optimizer"], objective, optimizer)
    schedule.load_state_dict(saved["settings"]["schedule"])
    require_schedule(schedule, checked.state.step)
    if scaler is not None:
        scaler.load_state_dict(saved["settings"]["scaler"])
    return checked.state


def optimizer_files(folder: Path) -> list[Path]:
    """The files with a checkpoint's optimizer: one, or one per rank."""
    return find_parts(folder, tensor_files.OPTIMIZER) or [folder / OPTIMIZER]


def load_optimizer(
    moments: Tensors, groups: list[dict[str, Any]], objective: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load an optimizer's tensors, of a sharded model this rank's rows of them, and its groups' settings.

    Parameters that a loss never reaches (such as a pooler) have no tensors.
    """
    names = parameter_names(objective)
    parameters, state = {name: parameter for parameter, name in names.items()}, defaultdict[str, dict[str, Any]](dict)
    for key, shape in moments.shapes().items():
        name, _, moment = key.rpartition("/")
        parameter = parameters[name]
        rows = rows_held(parameter) if shape == tuple(parameter.shape) else None
        state[name][moment] = moments.read(key) if rows is None else divided_as(parameter, moments.read(key, *rows))
    now = [[names[each] for each in group["params"]] for group in optimizer.param_groups]  # perhaps in another order
    settings = [{**group, "params": params} for group, params in zip(groups, now, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": settings})


def parameter_names(objective: nn.Module) -> dict[torch.Tensor, str]:
    """The names of an objective's parameters as in checkpoints, without the prefix of DDP's wrapper."""
    return {parameter: name.removeprefix("module.") for name, parameter in objective.named_parameters()}


def require_groups(groups: list[Group], objective: nn.Module, optimizer: torch.optim.Optimizer, place: Path) -> None:
    """Raise `ValueError` if the groups saved in `place` do not have the same parameters as the optimizer.

    Raises `ArtifactError` if they do, but grouped differently, as by a version that decays other parameters: parameters
    would get the settings of the wrong group.
    """
    names = parameter_names(objective)
    now = {names[p]: number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    then = {name: number for number, group in enumerate(groups) for name in group.params}
    if other := now.keys() ^ then.keys():
        raise ValueError(f"the optimizer's parameters differ by {some(sorted(other), 3)}")
    if moved := sorted(name for name in now if now[name] != then[name]):
        raise ArtifactError(
            f"{place}: the optimizer's parameter groups differ from this version's, which decays other parameters "
            f"({some(moved, 3)}); set another `run` to start again, or `resume: fork` to keep the weights"
        )


def require_schedule(schedule: Any, step: int) -> None:
    """Raise `ValueError` if a schedule is not at `step`: it advances only with steps that change the weights."""
    if schedule.last_epoch != step:
        raise ValueError(f"the schedule is at step {schedule.last_epoch}, training at step {step}")
