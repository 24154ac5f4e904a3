"""Separate causal attention for each text of a shared row, without a mask, whose cost is quadratic in the row's length.

A token attends to the earlier tokens of its own text. On a CPU the texts are computed one after another, with SDPA's
kernel for a single text; on a GPU in half precision, all together by the varlen kernel of flash attention (Dao 2023,
"FlashAttention-2") in torch. Elsewhere, and with attention dropout, a mask over all pairs of tokens is used.

transformers selects an attention implementation by name, and passes no mask to one without a mask function (see its
documentation of AttentionInterface). The ends of texts are passed as transformers' `cu_seq_lens_q`.
"""

from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

APART = "sdpa_of_each_text"
"""The name under which this attention is registered in transformers."""

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""torch's version, which decides the use of its varlen attention: scale and window need 2.11, grouped-query attention
2.12. Its signature cannot be inspected in compiled code.
"""


def text_ends(position_ids: torch.Tensor) -> torch.Tensor:
    """The ends of texts in the concatenated rows, preceded by 0; int32, of shape [texts + 1].

    A text begins where `position_ids`, of shape [B, T], are 0, and at the start of each row.
    """
    begins = position_ids == 0
    begins[:, 0] = True
    end = torch.tensor([begins.numel()], device=position_ids.device)
    return torch.cat([begins.flatten().nonzero().squeeze(1), end]).int()


@torch.library.custom_op("headrace::attend_each", mutates_args=(), device_types="cpu")
def attend_each(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention within each text on a CPU, of shape [B, H, T, D], and its log-sum-exp, of shape [B, T, H]."""
    output, sums = torch.empty_like(query), query.new_empty(_sums_shape(query), dtype=torch.float32)
    for row, start, end in _texts(ends, query.shape[2]):
        parts = (each[row : row + 1, :, start:end] for each in (query, key, value))
        attended, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts, 0.0, True, scale=scale)
        output[row, :, start:end] = attended[0]
        sums[row, start:end] = log_sums[0].transpose(0, 1)
    return output, sums


@attend_each.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), query.new_empty(_sums_shape(query), dtype=torch.float32)


@torch.library.custom_op("headrace::attend_each_backward", mutates_args=(), device_types="cpu")
def attend_each_backward(
    upstream: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    sums: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients to query, key and value."""
    grads = tuple(torch.empty_like(each) for each in (query, key, value))
    for row, start, end in _texts(ends, query.shape[2]):
        parts = (each[row : row + 1, :, start:end] for each in (upstream, query, key, value, output))
        log_sums = sums[row : row + 1, start:end].transpose(1, 2)
        computed = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *parts, log_sums, 0.0, True, scale=scale
        )
        for grad, each in zip(grads, computed, strict=True):
            grad[row, :, start:end] = each[0]
    return grads[0], grads[1], grads[2]


@attend_each_backward.register_fake
def _(
    upstream: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    sums: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _sums_shape(query: torch.Tensor) -> tuple[int, int, int]:
    rows, heads, width, _ = query.shape
    return rows, width, heads


def _texts(ends: torch.Tensor, width: int) -> list[tuple[int, int, int]]:
    """The row of each text, and its start and end in the row."""
    places: list[int] = ends.tolist()
    return [(start // width, start % width, start % width + end - start) for start, end in pairwise(places)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, upstream: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    query, key, value, ends, output, sums = ctx.saved_tensors
    grads = attend_each_backward(upstream, query, key, value, output, sums, ends, ctx.scale)
    return *grads, None, None


attend_each.register_autograd(_backward, setup_context=_keep)


def attend_apart(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' interface, of shapes [B, H, T, D] -> [B, T, H, D]; within texts, if ends are set."""
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    if attention_mask is not None or options.get("position_bias") is not None or options.get("softcap") is not None:
        raise ValueError("this attention supports no mask, bias or cap together with the ends of texts")
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    if dropout == 0.0 and query.device.type == "cpu":
        key, value = (each.repeat_interleave(groups, dim=1) if groups > 1 else each for each in (key, value))
        output = attend_each(query, key, value, cu_seq_lens_q, scale)[0].transpose(1, 2)
    elif dropout == 0.0 and _takes_varlen(query, value):
        output = attend_at_once(query, key, value, cu_seq_lens_q, scale)
    else:
        mask = text_mask(cu_seq_lens_q, query)
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=groups > 1
        ).transpose(1, 2)
    return output.contiguous(), None


def _takes_varlen(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether flash attention supports these: an Ampere GPU or later, half precision, and a supported head size."""
    size = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and size == value.shape[-1]
        and size % 8 == 0
        and size <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
        and TORCH >= (2, 11)
    )


def attend_at_once(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, scale: float
) -> torch.Tensor:
    """Causal attention within each text, on a GPU; [B, H, T, D] -> [B, T, H, D]."""
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, width, _ = query.shape
    options: dict[str, Any] = {}
    if heads != key.shape[1] and TORCH >= (2, 12):
        options["enable_gqa"] = True
    elif heads != key.shape[1]:
        key, value = (each.repeat_interleave(heads // key.shape[1], dim=1) for each in (key, value))
    query_NHD, key_NHD, value_NHD = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    attended: Any = varlen_attn(
        query_NHD, key_NHD, value_NHD, ends, ends, width, width, scale=scale, window_size=(-1, 0), **options
    )
    return torch.unflatten(attended, 0, (rows, width))


def text_mask(ends: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The attention mask of shape [B, 1, T, T], True where a token attends, for queries of shape [B, H, T, D]."""
    rows, _, width, _ = query.shape
    places = torch.arange(rows * width, device=query.device)
    text = torch.searchsorted(ends, places, right=True, out_int32=True).view(rows, width)
    seen = torch.ones(width, width, dtype=torch.bool, device=query.device).tril()
    return ((text[:, :, None] == text[:, None, :]) & seen)[:, None]


def positions(model: PreTrainedModel, position_ids: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """A model's arguments for positions; none if each row is one text from its beginning."""
    if position_ids is None:
        return {}
    if model.config._attn_implementation != APART:
        return {"position_ids": position_ids}
    return {"position_ids": position_ids, "cu_seq_lens_q": text_ends(position_ids)}


AttentionInterface.register(APART, attend_apart)
