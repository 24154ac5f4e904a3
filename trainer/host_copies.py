"""Copies of tensors in host memory that is kept from one snapshot to the next.

Filling memory that is new takes several times as long (the system hands it out page by page), and a GPU copies fastest to
memory that is page-locked. PyTorch's own page-locked memory comes in powers of two, up to twice what is asked for; here it is
taken from the system as a whole, and locked as it is.
"""

import logging
import mmap
from collections.abc import Mapping

import torch

log = logging.getLogger(__name__)

ALIGNMENT = 64
"""Bytes between which tensors begin: what vector instructions and safetensors want at most."""


class HostCopies:
    """Copies on the CPU, by kind and name."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}

    def take(self, kind: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of tensors, over those of the same kind that were taken before; tied weights go on sharing their memory."""
        places = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in tensors.items()}
        distinct = {place: tensors[name] for name, place in places.items()}
        layout = [(tensor.shape, tensor.dtype) for tensor in distinct.values()]
        lock = any(tensor.is_cuda for tensor in distinct.values())
        room = self._rooms.get(kind)
        if room is None or room.layout != layout:
            if room is not None:
                self._rooms.pop(kind).close()
            room = self._rooms[kind] = _Room(layout, lock)
        copies = dict(zip(distinct, room.tensors, strict=True))
        for place, tensor in distinct.items():
            copies[place].copy_(tensor.detach(), non_blocking=True)
        if lock:
            torch.cuda.synchronize()
        return {name: copies[place] for name, place in places.items()}


class _Room:
    """Memory for tensors of some shapes and types, one after the other."""

    def __init__(self, layout: list[tuple[torch.Size, torch.dtype]], lock: bool) -> None:
        self.layout = layout
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in layout]
        memory = mmap.mmap(-1, max(1, sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)))
        self.tensors, start = [], 0
        for (shape, dtype), size in zip(layout, sizes, strict=True):
            # Each has a storage of its own, as what saves them takes those that share one for tied.
            raw = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start) if size else torch.empty(0)
            self.tensors.append(raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype))
            start += -(-size // ALIGNMENT) * ALIGNMENT
        self._locked = _lock(memory) if lock else None

    def close(self) -> None:
        """Unlock the memory, which the system takes back when nothing uses it any more."""
        if self._locked is not None:
            torch.cuda.cudart().cudaHostUnregister(self._locked)


def _lock(memory: mmap.mmap) -> int | None:
    """Lock memory for copies by a GPU; returns its address, or None if the system allows no more of that."""
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    status = torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)
    if status.value:
        log.info(
            "%d bytes for checkpoints are not page-locked (CUDA's error %d): saving stalls longer", len(memory), status.value
        )
        return None
    return address
