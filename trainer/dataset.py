"""What training reads: windows over the shards of every corpus, in their order, and the held-out windows."""

from typing import NamedTuple

import numpy as np
import torch

from trainer.config import TrainingConfig
from trainer.evaluation import HeldOut, held_out_windows
from trainer.order import DataOrder
from trainer.plan import StepPlan
from trainer.preparation import PreparedData
from trainer.shards import open_shards
from trainer.step import Batch
from trainer.storage import Store
from trainer.windows import Windows


class Dataset(NamedTuple):
    """Training windows by corpus, their order, and held-out windows."""

    windows: list[Windows]
    order: DataOrder
    held_out: list[HeldOut]


def open_dataset(
    store: Store, data: PreparedData, training: TrainingConfig, plan: StepPlan, max_held_out: int | None
) -> Dataset:
    """Open the shards; `max_held_out` limits the held-out windows a corpus."""
    sets = [open_shards(store, ref.key) for ref in data.shards]
    windows = [Windows(s.train, training.context, training.stride or training.context) for s in sets]
    names = [s.corpus for s in sets]
    order = DataOrder(training.seed, names, [corpus.probability for corpus in plan.corpora], [len(w) for w in windows])
    held_out = [held_out_windows(s.corpus, s.validation, training.context, max_held_out) for s in sets]
    return Dataset(windows, order, held_out)


def read_batch(number: int, plan: StepPlan, order: DataOrder, windows: list[Windows], rank: int) -> Batch:
    """This rank's share of global batch `number`: samples [number * global_batch, (number + 1) * global_batch)."""
    share = plan.global_batch // plan.ranks
    corpora, places = order.samples(number * plan.global_batch + rank * share, share)
    tokens_BT = np.stack([windows[corpus].read(int(place)) for corpus, place in zip(corpora, places, strict=True)])
    targets = plan.global_batch * (tokens_BT.shape[1] - 1)
    parts = torch.from_numpy(tokens_BT).split(plan.micro_batch)
    return Batch([{"input_ids": part} for part in parts], targets, plan.tokens_per_step)
