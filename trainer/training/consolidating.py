"""A model from the parts of its ranks, as a folder that `from_pretrained` loads: one file at a time, never all in memory."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import GENERATION_CONFIG_NAME

from trainer.models.opened import Tensors
from trainer.models.weights import INDEX, WEIGHTS, weight_files

FILE_BYTES = 5 * 10**9
"""A file's size at most, unless what belongs together is larger: the tensors of a layer."""

Named = dict[str, torch.Tensor]
"""Tensors by name."""


def publish_parts(model: PreTrainedModel, checkpoint: Path, folder: Path) -> None:
    """Write what a checkpoint holds of a sharded model into a folder, as `save_pretrained` writes it."""
    consolidate(Tensors(weight_files(checkpoint)), folder, saved_form(model))
    for name in ("config.json", GENERATION_CONFIG_NAME):
        if (checkpoint / name).is_file():
            (folder / name).write_bytes((checkpoint / name).read_bytes())


def saved_form(model: PreTrainedModel) -> Callable[[Named], Named]:
    """What gives the tensors of a layer as `save_pretrained` writes them: some under other names, experts each by itself."""
    plain = cast(type[PreTrainedModel], next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule)))
    with torch.device("meta"):
        whole = plain(model.config)
    for name in ("_weight_conversions", "_keys_to_ignore_on_save"):
        if hasattr(model, name):
            setattr(whole, name, getattr(model, name))
    left_out = set(whole._keys_to_ignore_on_save or ())
    return lambda layer: revert_weight_conversion(whole, {name: each for name, each in layer.items() if name not in left_out})


def consolidate(
    tensors: Tensors, folder: Path, convert: Callable[[Named], Named] = lambda layer: layer, file_bytes: int = FILE_BYTES
) -> None:
    """Write whole tensors into a folder, converted layer by layer: one file, or several with an index, as transformers does."""
    groups = list(_groups(tensors, file_bytes))
    names = [WEIGHTS] if len(groups) == 1 else [
        f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)
    ]  # fmt: skip
    placed: dict[str, str] = {}
    parameters = size = 0
    for file, layers in zip(names, groups, strict=True):
        whole: Named = {}
        for layer in layers:
            whole |= {name: each.contiguous() for name, each in convert({name: tensors.read(name) for name in layer}).items()}
        placed |= dict.fromkeys(whole, file)
        parameters += sum(map(torch.Tensor.numel, whole.values()))
        size += sum(each.nbytes for each in whole.values())
        save_file(whole, folder / file, metadata={"format": "pt"})
        del whole  # before the next one is read
    if len(groups) > 1:
        index = {"metadata": {"total_parameters": parameters, "total_size": size}, "weight_map": dict(sorted(placed.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _groups(tensors: Tensors, most: int) -> Iterator[list[list[str]]]:
    """The layers that go into each file, each the names of its tensors."""
    group: list[list[str]] = []
    held = 0
    for _, names in groupby(sorted(tensors.shapes()), _layer):
        layer = list(names)
        size = sum(map(tensors.size, layer))
        if group and held + size > most:
            yield group
            group, held = [], 0
        group.append(layer)
        held += size
    yield group


def _layer(name: str) -> str:
    """The layer that a tensor is of, by its name: all up to the first number; else the tensor by itself."""
    found = re.match(r".*?\.\d+\.", name)
    return found[0] if found else name
