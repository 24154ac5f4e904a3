"""Copies of tensors in host memory that is kept from one snapshot to the next.

Filling memory that is new takes several times as long (the system hands it out page by page), and a GPU copies fastest to
memory that is page-locked. PyTorch's own page-locked memory comes in powers of two, up to twice what is asked for; here it is
taken from the system as a whole, and locked as it is.
"""

import logging
import mmap
import weakref
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate

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
        places = {name: (tensor.data_ptr(), tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        distinct = {place: tensors[name] for name, place in places.items()}
        layout = [(tensor.shape, tensor.dtype) for tensor in distinct.values()]
        lock = any(tensor.is_cuda for tensor in distinct.values())
        room = self._rooms.get(kind)
        if room is None or room.layout != layout:
            self._rooms.pop(kind, None)
            room = None  # and its memory is let go of, before more is taken
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
        starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
        memory = mmap.mmap(-1, max(1, starts.pop()), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.tensors = []
        for (shape, dtype), size, start in zip(layout, sizes, starts, strict=True):
            # Each has a storage of its own, as what saves them takes those that share one for tied.
            raw = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start) if size else torch.empty(0)
            self.tensors.append(raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype))
        if lock and (address := _lock(memory)) is not None:
            # What stays locked after it is unmapped is copied wrongly once other memory has that address.
            weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, address)


def _lock(memory: mmap.mmap) -> int | None:
    """Lock memory for copies by a GPU; returns its address, or None if that cannot be."""
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    status = torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)
    if status.value:
        log.info("checkpoints: %d bytes cannot be page-locked (CUDA error %d): saves stall longer", len(memory), status.value)
        with suppress(RuntimeError):  # the error is told to whoever computes next
            torch.zeros(1, device="cuda").add_(1)
        return None
    return address
