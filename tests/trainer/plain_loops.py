"""Training in a plain loop of torch, with which runs are compared."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def small_adamw(decayed: list[nn.Parameter], spared: list[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW with a small job's settings, and without weight decay for the spared parameters."""
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)


def train_plainly(
    optimizer: torch.optim.Optimizer, schedule: Any, losses: Iterable[torch.Tensor], clip: float = 1.0
) -> list[float]:
    """Step on each loss; the next one is computed after that. Returns the losses."""
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = []
    for loss in losses:
        loss.backward()
        nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found
