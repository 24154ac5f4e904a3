"""Fast dropout on a CPU, where PyTorch draws random numbers serially, 3 to 6 ns each on a machine without Intel MKL.

16 random bits of Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") decide whether a value is
kept. The key is drawn from PyTorch's generator for each call. So results depend only on that generator's state, and are
the same with and without compilation, and when activations are recomputed for the backward pass.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

DRAWN = ("drop", "jitter")
"""Parts of the names of settings for random dropping or jitter in training."""

LEVELS = 2**16
"""The number of values of 16 bits; dropout rates are rounded to a multiple of 1 / 65,536."""


@torch.library.custom_op("headrace::kept_by", mutates_args=(), device_types="cpu")
def kept_by(key: torch.Tensor, values: torch.Tensor, dropped: int) -> torch.Tensor:
    """A bool mask of the values to keep, of their shape; each is dropped with probability dropped / 65,536.

    Only the key decides. It is drawn outside, by an operation that the compiler knows to be random: the compiler would
    merge two calls of a custom operation with equal arguments.
    """
    count = values.numel()
    bits = np.random.Philox(key=int(key)).random_raw(-(-count // 4)).view(np.uint16)
    return torch.from_numpy(bits[:count] >= dropped).view(values.shape)


@kept_by.register_fake
def _(key: torch.Tensor, values: torch.Tensor, dropped: int) -> torch.Tensor:
    return torch.empty_like(values, dtype=torch.bool, memory_format=torch.contiguous_format)


def drop(values: torch.Tensor, rate: float) -> torch.Tensor:
    """Set a share of the values, of any shape, to 0, and scale the others to keep the expected value."""
    dropped = round(rate * LEVELS)
    if dropped in (0, LEVELS):
        return values if dropped == 0 else values * 0.0
    kept: torch.Tensor = kept_by(torch.randint(2**63 - 1, (), device=values.device), values, dropped)
    return values * kept * (LEVELS / (LEVELS - dropped))


class Dropout(nn.Dropout):
    """`nn.Dropout` on a CPU."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return drop(values, self.p) if self.training else values


def draw_fast(model: nn.Module) -> None:
    """Replace the dropout layers of a model that trains on a CPU, in place."""
    for module in model.modules():
        if type(module) is nn.Dropout and not module.inplace:
            module.__class__ = Dropout  # keeps the object, which may have hooks or be used twice


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA attention with transformers' interface, of shapes [B, H, T, D] -> [B, T, H, D].

    With dropout on a CPU, it computes SDPA's formula explicitly with the fast dropout.
    """
    others = any(options.get(name) is not None for name in ("position_bias", "cache", "softcap"))
    if dropout == 0.0 or query.device.type != "cpu" or others:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    key, value = (repeat_kv(each, query.shape[1] // each.shape[1]) for each in (key, value))
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    weights = (query * scale) @ key.transpose(-1, -2)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        weights = weights.masked_fill(~attention_mask, torch.finfo(weights.dtype).min)
    elif attention_mask is not None:
        weights = weights + attention_mask.clamp(min=torch.finfo(weights.dtype).min)
    weights = drop(weights.softmax(-1, dtype=torch.float32), dropout).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("sdpa", attend)
