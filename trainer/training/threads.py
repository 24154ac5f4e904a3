"""How many threads a process computes with on a CPU.

Sums are divided among them, so another number gives other last bits: a run keeps the one that it began with.
"""

import logging
from typing import Any

import torch

from trainer.common.process import THREADS, cores_per_rank, threads_asked_for
from trainer.training.runtime import Runtime
from trainer.training.saved_settings import Computed

log = logging.getLogger(__name__)


def describe_threads(device: torch.device, ranks: int) -> dict[str, Any]:
    """What a checkpoint records of how it was computed; no threads where a GPU computes."""
    return {"threads": torch.get_num_threads() if device.type == "cpu" else None, "ranks": ranks}


def keep_threads(recorded: Computed, runtime: Runtime) -> None:
    """Go on with as many threads as a checkpoint was computed with; a warning, on rank 0, where that cannot be.

    On another number of ranks, or from a GPU to a CPU or back, results are equal to rounding only in any case.
    """
    before, now = recorded.threads, torch.get_num_threads()
    if runtime.device.type != "cpu" or recorded.ranks != runtime.ranks or before in (None, now):
        return
    asked, cores = threads_asked_for(), cores_per_rank()
    if asked is None and before <= cores:
        torch.set_num_threads(before)
        return
    if runtime.rank == 0:
        reason = f"{THREADS} says so" if asked else f"a rank has no more cores; {THREADS}={before} keeps them, slowly"
        log.warning(
            "until this checkpoint the run was computed with %d threads, from now on with %d (%s): what comes out equals "
            "that of an uninterrupted run to rounding, not to the last bit",
            before, now, reason,
        )  # fmt: skip
