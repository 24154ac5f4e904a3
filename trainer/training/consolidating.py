"""A model from the parts of its ranks, as a folder that `from_pretrained` loads: one file at a time, never all in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.utils import GENERATION_CONFIG_NAME

from trainer.pretrained.opened import Tensors
from trainer.pretrained.weights import INDEX, WEIGHTS, weight_files

FILE_BYTES = 5 * 10**9
"""A file's size at most, unless one tensor is larger."""


def publish_parts(checkpoint: Path, folder: Path) -> None:
    """Write a checkpoint's model into a folder, as `save_pretrained` writes it."""
    consolidate(Tensors(weight_files(checkpoint)), folder)
    for name in ("config.json", GENERATION_CONFIG_NAME):
        if (checkpoint / name).is_file():
            (folder / name).write_bytes((checkpoint / name).read_bytes())


def consolidate(tensors: Tensors, folder: Path, file_bytes: int = FILE_BYTES) -> None:
    """Write whole tensors into a folder: one file, or several with an index, as transformers names them."""
    groups = list(_groups(tensors, file_bytes))
    names = [WEIGHTS] if len(groups) == 1 else [
        f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)
    ]  # fmt: skip
    parameters = 0
    for file, group in zip(names, groups, strict=True):
        whole = {name: tensors.read(name) for name in group}
        parameters += sum(map(torch.Tensor.numel, whole.values()))
        save_file(whole, folder / file, metadata={"format": "pt"})
        del whole  # before the next one is read
    if len(groups) > 1:
        size = sum(tensors.size(name) for group in groups for name in group)
        placed = {name: file for file, group in zip(names, groups, strict=True) for name in group}
        index = {"metadata": {"total_parameters": parameters, "total_size": size}, "weight_map": dict(sorted(placed.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _groups(tensors: Tensors, most: int) -> Iterator[list[str]]:
    """The names of the tensors that go into each file."""
    group: list[str] = []
    held = 0
    for name in sorted(tensors.shapes()):
        size = tensors.size(name)
        if group and held + size > most:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    yield group
