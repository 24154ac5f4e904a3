"""Read the headers of safetensors files, and find the parts of a model that the ranks of a sharded run wrote.

    model-part-00000-of-00002-0123456789abcdef.safetensors    rank 0's rows of each weight, and undivided tensors
    model-part-00001-of-00002-fedcba9876543210.safetensors    rank 1's

A part's header holds the first row of each tensor and the shape of the whole tensor. So a different number of ranks can
read the parts, each only its own rows, and no process holds a whole model.

The name ends with a digest of the content: a save never overwrites a committed part, and a part that arrives late, as a
request to a bucket may, is either identical or a separate file. The manifest lists the parts of a checkpoint.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.store.artifact_files import listed_names, named_by_content
from trainer.store.storage import Store

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""


ROW_RANGES = "stretches"
"""The entry of a header's metadata, in JSON, for tensors of which the file holds some rows: the first row and the whole
tensor's shape, by name."""


class Tensor(NamedTuple):
    """A tensor's number format, such as F32, and its shape.

    A part of a sharded checkpoint holds consecutive rows, from `start` on, of a tensor of shape `whole`.
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
    """The tensors of a file of `size` bytes, by name; `read` returns its bytes between two offsets.

    Raises `ValueError` if the header is invalid, or describes a file of another size.
    """
    length = int.from_bytes(read(0, 8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
    header = json.loads(read(8, 8 + length))
    if not isinstance(header, dict):
        raise ValueError(f"a header that is {type(header).__name__}, not an object")
    try:
        entries = {name: each for name, each in header.items() if name != "__metadata__"}
        row_ranges = json.loads(header.get("__metadata__", {}).get(ROW_RANGES, "{}"))
        tensors = {name: _tensor(each, row_ranges.get(name)) for name, each in entries.items()}
        spans = [(int(each["data_offsets"][0]), int(each["data_offsets"][1])) for each in entries.values()]
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a header that does not describe tensors: {error}") from error
    end = max((end for _, end in spans), default=0)
    if size != 8 + length + end:
        raise ValueError(f"{size:,} bytes, where its header describes {8 + length + end:,}")
    if sum(end - start for start, end in spans) != end:
        raise ValueError("a header whose tensors do not fill the file")
    return tensors


def _tensor(entry: dict[str, Any], row_range: Any) -> Tensor:
    shape = tuple(entry["shape"])
    start, whole = (0, shape) if row_range is None else (row_range[0], tuple(row_range[1]))
    if not all(type(each) is int and each >= 0 for each in (*shape, *whole, start)):
        raise ValueError(f"a tensor of the shape {shape}")
    if shape != whole and (shape[1:] != whole[1:] or start + shape[0] > whole[0]):
        raise ValueError(f"rows of the shape {shape} from row {start} on of a tensor of the shape {whole}")
    return Tensor(str(entry["dtype"]), shape, whole, start)


PART = re.compile(r"(?P<stem>[a-z]+)-part-\d{5}-of-\d{5}-[0-9a-f]{16}\.safetensors")
MODEL, OPTIMIZER = "model", "optimizer"
"""The first words in the names of parts."""


def part_name(stem: str, rank: int, ranks: int, sha256: str) -> str:
    """The file name of a rank's part with this digest."""
    return named_by_content(f"{stem}-part-{rank:05d}-of-{ranks:05d}.safetensors", sha256)


def is_part(name: str, stem: str) -> bool:
    """Whether a file is a part of the model or optimizer, as `stem` says."""
    found = PART.fullmatch(name)
    return found is not None and found["stem"] == stem


def of_optimizer(name: str) -> bool:
    """Whether a file of a checkpoint holds its optimizer or a part of it, which loading the model does not need."""
    return name == f"{OPTIMIZER}.safetensors" or is_part(name, OPTIMIZER)


def find_parts(folder: Path, stem: str) -> list[Path]:
    """The parts of the model or optimizer in a folder; empty if it is not sharded.

    If there is a manifest, only parts that it lists: others are from an interrupted save.
    """
    listed = listed_names(folder)
    found = (path for path in folder.iterdir() if is_part(path.name, stem)) if folder.is_dir() else ()
    return sorted(path for path in found if listed is None or path.name in listed)


def find_gap(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Describe, as the end of a sentence, rows that the pieces lack or hold twice; None if all tensors are complete."""
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
                if each.start < reached:
                    return f"hold row {each.start} of {name!r} twice"
                return f"lack row {reached} of {name!r}"
            reached += each.shape[0]
        if reached != whole[0]:
            return f"hold {reached} of the {whole[0]} rows of {name!r}"
    return None
