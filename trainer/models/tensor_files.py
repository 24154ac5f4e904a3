"""What a safetensors file says of its tensors, and the parts of a model that the ranks of a sharded run wrote.

    model-part-00000-of-00002-0123456789abcdef.safetensors    rank 0's rows of each weight, and what is not divided
    model-part-00001-of-00002-fedcba9876543210.safetensors    rank 1's

A part's header says of each tensor from which row on it holds it, and the shape of the whole. So
another number of ranks can read them, each the rows that it needs, and no process has to hold a whole model.

The name ends with a digest of the content: a save never writes over what another one has committed, and a part that
arrives late, as a request to a bucket may, is either the same or beside it. The manifest says which parts a checkpoint
consists of.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.store.manifest import listed_names, named_by_content
from trainer.store.storage import Store

MAX_HEADER_BYTES = 100_000_000
"""As much as the library itself reads."""


STRETCHES = "stretches"
"""The entry of a header's metadata that says, in JSON, of which tensors a file holds a stretch: its first row, and the
shape of the whole, by name."""


class Tensor(NamedTuple):
    """A tensor's number format, such as F32, and its shape.

    What a part of a sharded checkpoint holds is a stretch of a `whole` tensor's rows, those from `start` on.
    """

    dtype: str
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    start: int


def read_tensors(store: Store, key: str, size: int) -> dict[str, Tensor]:
    """The tensors of a file of `size` bytes, by name.

    Raises `ArtifactError` if it is missing or damaged, `StorageError` if the store cannot be read.
    """
    try:
        return read_header(size, partial(store.read_bytes, key))
    except (FileNotFoundError, ValueError) as error:
        raise ArtifactError(f"{store.path(key)} is missing or damaged ({error})") from error


def read_file_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a local file, by name. Raises `OSError` or `ValueError` if it is missing or damaged."""
    with open(path, "rb") as opened:

        def read(start: int, end: int) -> bytes:
            opened.seek(start)
            return opened.read(end - start)

        return read_header(path.stat().st_size, read)


def read_header(size: int, read: Callable[[int, int], bytes]) -> dict[str, Tensor]:
    """The tensors of a file of `size` bytes, by name; `read` gives its bytes from one offset to another.

    Raises `ValueError` if the header cannot be one, or describes a file of another size.
    """
    length = int.from_bytes(read(0, 8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
    header = json.loads(read(8, 8 + length))
    if not isinstance(header, dict):
        raise ValueError(f"a header that is {type(header).__name__}, not an object")
    try:
        told = {name: each for name, each in header.items() if name != "__metadata__"}
        stretches = json.loads(header.get("__metadata__", {}).get(STRETCHES, "{}"))
        tensors = {name: _tensor(each, stretches.get(name)) for name, each in told.items()}
        spans = [(int(each["data_offsets"][0]), int(each["data_offsets"][1])) for each in told.values()]
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a header that does not describe tensors: {error}") from error
    end = max((end for _, end in spans), default=0)
    if size != 8 + length + end:
        raise ValueError(f"{size:,} bytes, where its header describes {8 + length + end:,}")
    if sum(end - start for start, end in spans) != end:
        raise ValueError("a header whose tensors do not fill the file")
    return tensors


def _tensor(told: dict[str, Any], stretch: Any) -> Tensor:
    shape = tuple(told["shape"])
    start, whole = (0, shape) if stretch is None else (stretch[0], tuple(stretch[1]))
    if not all(type(each) is int and each >= 0 for each in (*shape, *whole, start)):
        raise ValueError(f"a tensor of the shape {shape}")
    if shape != whole and (shape[1:] != whole[1:] or start + shape[0] > whole[0]):
        raise ValueError(f"a stretch of the shape {shape} from row {start} on of a tensor of the shape {whole}")
    return Tensor(str(told["dtype"]), shape, whole, start)


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
    """Whether a file of a checkpoint holds its optimizer, or a part of it: whoever loads the model needs none of
    them.
    """
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
                return (
                    f"hold row {min(each.start, reached)} of {name!r} {'twice' if each.start < reached else 'nowhere'}"
                )
            reached += each.shape[0]
        if reached != whole[0]:
            return f"hold {reached} of the {whole[0]} rows of {name!r}"
    return None
