"""What a language model says after some tokens, by what is asked for alone."""

from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from trainer.models.causal import most_positions

LEAST_TEMPERATURE = 1e-6
"""Below it, logits divided by it are beyond float32; the likeliest token has all chance long before."""


@torch.no_grad()
def continue_tokens(
    model: PreTrainedModel, ids: list[int], new_tokens: int, ends_with: int | None = None, temperature: float = 0.0,
    top_k: int | None = None, seed: int = 0, streamer: Any = None, together: bool = False,
) -> list[int]:  # fmt: skip
    """Up to `new_tokens` ids that follow these, as far as the model has positions; at `temperature` 0 the likeliest
    each time.

    It stops at the tokens that the model's settings of generation name, or at `ends_with`; nothing else of these
    settings counts, as a penalty for repetition, which a published model may bring along. `together`: all ranks
    compute as many tokens, which a model that is divided among them asks for.
    """
    model.eval()
    own: Any = model.generation_config
    end, padding = (own.eos_token_id, own.pad_token_id) if ends_with is None else (ends_with, ends_with)
    drawn: dict[str, Any] = {"do_sample": False}
    if temperature >= LEAST_TEMPERATURE:
        torch.manual_seed(seed)
        drawn = {"do_sample": True, "temperature": temperature, "top_k": top_k or 0}  # else transformers takes 50
    input_ids = torch.tensor([ids], device=model.device)
    generate: Any = model.generate
    # What is not said to `generate` is taken from here.
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=padding)
    try:
        output = generate(
            input_ids, attention_mask=torch.ones_like(input_ids), streamer=streamer, use_cache=True,
            max_new_tokens=min(new_tokens, most_positions(model.config) - len(ids)), synced_gpus=together, **drawn,
        )  # fmt: skip
    finally:
        model.generation_config = own
    said: list[int] = output[0, len(ids) :].tolist()
    return said
