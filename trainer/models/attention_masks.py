"""Attention without masks where it needs none.

When a model is compiled with torch before 2.14, transformers builds a mask even if SDPA's `is_causal` suffices
(`_ignore_causal_mask_sdpa` and `find_packed_sequence_indices` in its masking_utils.py). With a mask, attention also
computes the masked scores, and a GPU's fastest kernels are not used. transformers passes no mask to an attention
implementation without a mask function (see its documentation of AttentionInterface).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from trainer.models.documents import APART
from trainer.models.dropout import attend
from trainer.models.layers import in_mode
from trainer.models.losses import with_weights

WITH_MASKS, WITHOUT_MASKS, NOTED = "sdpa", "sdpa_without_masks", "sdpa_with_noted_masks"


@torch.no_grad()
def leave_out_masks(model: PreTrainedModel, input_ids: torch.Tensor) -> bool:
    """Make a model build no masks if, uncompiled, it builds none for a row of this length; returns whether it does so.

    A model with a sliding window needs its masks and keeps them. `input_ids` has shape [B, T].
    """
    plain = makes_no_masks(model, input_ids)
    if plain:
        AttentionInterface.register(WITHOUT_MASKS, attend)
        model.set_attn_implementation(WITHOUT_MASKS)
    return plain


@torch.no_grad()
def makes_no_masks(model: PreTrainedModel, input_ids: torch.Tensor) -> bool:
    """Whether a model's SDPA attends to all earlier tokens of a row of this length without a mask."""
    if model.config._attn_implementation != WITH_MASKS:
        return False
    masks: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        masks.append(sdpa_mask(*args, **kwargs))
        return masks[-1]

    AttentionInterface.register(NOTED, attend)
    AttentionMaskInterface.register(NOTED, noted)
    with in_mode(model, training=False), _attending(model, NOTED):
        with_weights(_read, model, input_ids[:1])
    return bool(masks) and all(mask is None for mask in masks)


@contextmanager
def masks_made(model: PreTrainedModel) -> Iterator[None]:
    """Within the block, let a model build its masks, for rows padded on the left."""
    hidden = model.config._attn_implementation in (WITHOUT_MASKS, APART)
    with _attending(model, WITH_MASKS) if hidden else nullcontext():
        yield


@contextmanager
def _attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Within the block, let a model attend by this implementation."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _read(model: PreTrainedModel, input_ids: torch.Tensor) -> None:
    model.base_model(input_ids=input_ids, use_cache=False)
