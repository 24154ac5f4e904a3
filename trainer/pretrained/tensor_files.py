"""What a safetensors file says of its tensors, read from its header alone."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.store.storage import Store

MAX_HEADER_BYTES = 100_000_000
"""As much as the library itself reads."""


STRETCHES = "stretches"
"""The entry of a header's metadata that says, in JSON, of which tensors a file holds a stretch: its first row, and the shape of
the whole, by name."""


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
