"""The parts that the ranks of a sharded run wrote of a model and of its optimizer: their names, and whether they are whole.

    model-part-00000-of-00002-0123456789abcdef.safetensors    rank 0's rows of each weight, and what is not divided
    model-part-00001-of-00002-fedcba9876543210.safetensors    rank 1's

A part's header says of each tensor from which row on it holds it, and the shape of the whole (tensor_files.py). So another
number of ranks can read them, each the rows that it needs, and no process has to hold a whole model.

The name ends with a digest of the content: a save never writes over what another one has committed, and a part that arrives
late, as a request to a bucket may, is either the same or beside it. The manifest says which parts a checkpoint consists of.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from trainer.pretrained.tensor_files import Tensor
from trainer.store.manifest import listed_names, named_by_content

PART = re.compile(r"(?P<stem>[a-z]+)-part-\d{5}-of-\d{5}-[0-9a-f]{16}\.safetensors")
MODEL, OPTIMIZER = "model", "optimizer"
"""What parts are of: the beginnings of their names."""


def part_name(stem: str, rank: int, ranks: int, sha256: str) -> str:
    """The file of a rank's part, of so many, with these contents."""
    return named_by_content(f"{stem}-part-{rank:05d}-of-{ranks:05d}.safetensors", sha256)


def is_part(name: str, stem: str) -> bool:
    """Whether a file is a part of the model, or of the optimizer."""
    found = PART.fullmatch(name)
    return found is not None and found["stem"] == stem


def of_optimizer(name: str) -> bool:
    """Whether a file of a checkpoint holds its optimizer, or a part of it: whoever loads the model needs none of them."""
    return name == f"{OPTIMIZER}.safetensors" or is_part(name, OPTIMIZER)


def find_parts(folder: Path, stem: str) -> list[Path]:
    """The parts of the model, or of the optimizer, in a folder; none if it is not divided.

    Where there is a manifest, those that it lists: others are of a save that was broken off.
    """
    listed = listed_names(folder)
    found = (path for path in folder.iterdir() if is_part(path.name, stem)) if folder.is_dir() else ()
    return sorted(path for path in found if listed is None or path.name in listed)


def find_gap(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """What the pieces of tensors lack, or hold twice, as the end of a sentence; None if each tensor is whole."""
    pieces: dict[str, list[Tensor]] = {}
    for name, tensor in tensors:
        pieces.setdefault(name, []).append(tensor)
    for name, found in pieces.items():
        whole, dtype = found[0].whole, found[0].dtype
        if any((each.whole, each.dtype) != (whole, dtype) for each in found):
            return f"hold {name!r} in several shapes or number formats"
        if not whole:
            if len(found) > 1:
                return f"hold {name!r} more than once"
            continue
        reached = 0
        for each in sorted(found, key=lambda each: each.start):
            if each.start != reached:
                return f"hold row {min(each.start, reached)} of {name!r} {'twice' if each.start < reached else 'nowhere'}"
            reached += each.shape[0]
        if reached != whole[0]:
            return f"hold {reached} of the {whole[0]} rows of {name!r}"
    return None
