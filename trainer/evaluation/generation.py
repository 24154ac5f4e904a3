"""Texts that a model continues, the same for the same seed."""

from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from trainer.common.stopping import check_stop
from trainer.config.jobs import EvaluationConfig
from trainer.records.evaluations import Sample


@torch.no_grad()
def continue_prompts(model: PreTrainedModel, tokenizer: Tokenizer, eos_id: int, options: EvaluationConfig) -> list[Sample]:
    """Continue each prompt by up to `new_tokens` tokens; an empty prompt begins a document."""
    model.eval()
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
    sampling = {"temperature": options.temperature, "top_k": options.top_k} if options.temperature else {}
    samples = []
    for prompt in options.prompts:
        check_stop()
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids or [eos_id]
        ids = ids[-max(1, limit - options.new_tokens) :]
        torch.manual_seed(options.seed)
        generate: Any = model.generate
        output = generate(
            torch.tensor([ids], device=model.device),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=model.device),
            max_new_tokens=min(options.new_tokens, limit - len(ids)),
            do_sample=options.temperature > 0,
            pad_token_id=eos_id,
            eos_token_id=eos_id,
            use_cache=True,
            **sampling,
        )
        samples.append(Sample(prompt=prompt, continuation=tokenizer.decode(output[0, len(ids) :].tolist())))
    return samples
