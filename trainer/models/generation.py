"""Continue tokens with a language model, ignoring its own generation settings except end tokens."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import GenerationConfig, PreTrainedModel

from trainer.models.pretrained import most_positions

LEAST_TEMPERATURE = 1e-6
"""Below it, divided logits may overflow float32; the likeliest token has all probability long before."""


def ends_of(settings: Any) -> list[int]:
    """The ids of the tokens at which generation with these settings stops."""
    ends: list[int] | int | None = settings.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


@torch.no_grad()
def continue_tokens(
    model: PreTrainedModel, ids: list[int], new_tokens: int, ends_with: int | None = None, temperature: float = 0.0,
    top_k: int | None = None, seed: int = 0, streamer: Any = None,
) -> list[int]:  # fmt: skip
    """Generate up to `new_tokens` ids after these, limited by the model's positions; `temperature` 0 is greedy.

    Generation stops at the end tokens of the model's generation settings, or at `ends_with`. Other generation settings
    of a published model, such as a repetition penalty, are ignored. With a sharded model, all ranks compute the same
    number of tokens.
    """
    model.eval()
    own: Any = model.generation_config
    end, padding = (own.eos_token_id, own.pad_token_id) if ends_with is None else (ends_with, ends_with)
    drawn: dict[str, Any] = {"do_sample": False}
    if temperature >= LEAST_TEMPERATURE:
        torch.manual_seed(seed)
        drawn = {"do_sample": True, "temperature": temperature, "top_k": top_k or 0}  # transformers' default is 50
    input_ids = torch.tensor([ids], device=model.device)
    generate: Any = model.generate
    # `generate` reads options that are not passed from here.
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=padding)
    try:
        output = generate(
            input_ids, attention_mask=torch.ones_like(input_ids), streamer=streamer, use_cache=True,
            max_new_tokens=min(new_tokens, most_positions(model.config) - len(ids)),
            synced_gpus=isinstance(model, FSDPModule), **drawn,
        )  # fmt: skip
    finally:
        model.generation_config = own
    tokens: list[int] = output[0, len(ids) :].tolist()
    return tokens
