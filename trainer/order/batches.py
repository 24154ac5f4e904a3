"""Batches in the data order, read ahead by a thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

READ_AHEAD = 2


class Batch(NamedTuple):
    """A rank's share of a global batch: what the objective is called with for each micro-batch, by name.

    `targets` are what the losses of all ranks' shares are a sum over: predicted tokens, or examples, or their weights. `tokens`
    are read.
    """

    micro_batches: Sequence[Mapping[str, torch.Tensor]]
    targets: float
    tokens: int


def batches_from(number: int, read: Callable[[int], Batch], device: torch.device) -> Iterator[Batch]:
    """Global batches `number`, `number + 1`, … without end, on the device, read ahead in a thread."""

    def pinned(number: int) -> Batch:
        batch = read(number)
        if device.type != "cuda":
            return batch
        return batch._replace(
            micro_batches=[{name: part.pin_memory() for name, part in inputs.items()} for inputs in batch.micro_batches]
        )

    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        ahead = [pool.submit(pinned, number + offset) for offset in range(READ_AHEAD)]
        while True:
            number += 1
            batch = ahead.pop(0).result()
            ahead.append(pool.submit(pinned, number + READ_AHEAD - 1))
            yield batch._replace(
                micro_batches=[
                    {name: part.to(device, non_blocking=True) for name, part in inputs.items()}
                    for inputs in batch.micro_batches
                ]
            )
