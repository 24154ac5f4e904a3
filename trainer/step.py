"""One optimizer step, in mathematical order: forward, scale, backward, unscale, clip, step, update, zero."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import get_scheduler

from trainer.config import TrainingConfig
from trainer.runtime import Runtime


class Batch(NamedTuple):
    """A rank's share of a global batch: micro-batches of shape [B, T], and the predicted tokens of all ranks' shares."""

    micro_batches: Sequence[torch.Tensor]
    targets: int


class Outcome(NamedTuple):
    """This rank's part of the step's mean loss (a sum over ranks gives it), the gradient's norm, and whether it counted."""

    loss: torch.Tensor
    grad_norm: torch.Tensor
    skipped: bool


def make_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW that decays matrices only: biases and norms, all of one dimension, are spared."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=training.learning_rate, betas=(training.beta1, training.beta2), eps=training.epsilon, fused=True
    )


def make_schedule(optimizer: torch.optim.Optimizer, training: TrainingConfig, total_steps: int) -> Any:
    """The learning-rate schedule by its `transformers` name; advanced once a successful optimizer step."""
    return get_scheduler(training.schedule, optimizer, num_warmup_steps=training.warmup_steps, num_training_steps=total_steps)


def train_step(
    objective: nn.Module, optimizer: Any, schedule: Any, batch: Batch, max_grad_norm: float | None, runtime: Runtime
) -> Outcome:
    """Step on the mean loss over all target tokens of the global batch.

    DDP averages gradients over ranks, so each rank's sum is scaled by ranks / targets; neither accumulation nor the number
    of ranks changes the gradient.
    """
    accelerator, ranks = runtime.accelerator, runtime.ranks
    loss = torch.zeros((), device=runtime.device)
    last = len(batch.micro_batches) - 1
    for number, input_ids in enumerate(batch.micro_batches):
        with accelerator.no_sync(objective) if number < last else nullcontext():
            share = objective(input_ids) / batch.targets
            accelerator.backward(share * ranks)
        loss += share.detach()
    limit = float("inf") if max_grad_norm is None else max_grad_norm
    grad_norm = accelerator.clip_grad_norm_(objective.parameters(), limit)
    optimizer.step()
    skipped = bool(accelerator.optimizer_step_was_skipped)
    if not skipped:
        schedule.step()
    optimizer.zero_grad(set_to_none=True)
    return Outcome(loss, grad_norm.detach(), skipped)
