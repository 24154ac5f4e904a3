"""Attention without masks, for a model of which each row is one whole window of text.

While a model is compiled with torch before 2.14, transformers makes a mask even where SDPA's `is_causal` says the same
(`_ignore_causal_mask_sdpa` and `find_packed_sequence_indices` in its masking_utils.py). With a mask the attention computes what
it then leaves out, and a GPU's fastest kernels are not taken. An implementation of attention that has no function for masks is
given none, as transformers' documentation of its AttentionInterface has it.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.models.losses import with_weights

WITH_MASKS, WITHOUT_MASKS, NOTED = "sdpa", "sdpa_without_masks", "sdpa_with_noted_masks"


@torch.no_grad()
def leave_out_masks(model: PreTrainedModel, input_ids: torch.Tensor) -> bool:
    """Have a model make no masks if, not compiled, it makes none for one row as long as all; returns whether that is so.

    A window that slides needs its masks, and keeps them. Shape of `input_ids` [B, T].
    """
    if model.config._attn_implementation != WITH_MASKS:
        return False
    masks: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        masks.append(sdpa_mask(*args, **kwargs))
        return masks[-1]

    AttentionInterface.register(NOTED, sdpa_attention_forward)
    AttentionInterface.register(WITHOUT_MASKS, sdpa_attention_forward)
    AttentionMaskInterface.register(NOTED, noted)
    was_training = model.training
    model.eval().set_attn_implementation(NOTED)
    with_weights(_read, model, input_ids[:1])
    plain = bool(masks) and all(mask is None for mask in masks)
    model.train(was_training).set_attn_implementation(WITHOUT_MASKS if plain else WITH_MASKS)
    return plain


def _read(model: PreTrainedModel, input_ids: torch.Tensor) -> None:
    model.base_model(input_ids=input_ids, use_cache=False)
