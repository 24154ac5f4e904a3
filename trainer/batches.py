"""Batches in the data order, read ahead by a thread."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from trainer.order import DataOrder
from trainer.plan import StepPlan
from trainer.step import Batch
from trainer.windows import Windows

READ_AHEAD = 2


def read_batch(number: int, plan: StepPlan, order: DataOrder, windows: list[Windows], rank: int) -> Batch:
    """This rank's share of global batch `number`: samples [number * global_batch, (number + 1) * global_batch)."""
    share = plan.global_batch // plan.ranks
    corpora, places = order.samples(number * plan.global_batch + rank * share, share)
    tokens = np.stack([windows[corpus].read(int(place)) for corpus, place in zip(corpora, places, strict=True)])
    targets = plan.global_batch * (tokens.shape[1] - 1)
    return Batch(torch.from_numpy(tokens).split(plan.micro_batch), targets)


def batches_from(
    number: int, plan: StepPlan, order: DataOrder, windows: list[Windows], rank: int, device: torch.device
) -> Iterator[Batch]:
    """Global batches `number`, `number + 1`, … without end, on the device, read ahead in a thread."""

    def read(number: int) -> Batch:
        batch = read_batch(number, plan, order, windows, rank)
        if device.type == "cuda":
            return batch._replace(micro_batches=[part.pin_memory() for part in batch.micro_batches])
        return batch

    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        ahead = [pool.submit(read, number + offset) for offset in range(READ_AHEAD)]
        while True:
            number += 1
            batch = ahead.pop(0).result()
            ahead.append(pool.submit(read, number + READ_AHEAD - 1))
            yield batch._replace(micro_batches=[part.to(device, non_blocking=True) for part in batch.micro_batches])
