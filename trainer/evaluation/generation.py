"""Texts that a model continues, the same for the same seed."""

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from trainer.common.stopping import check_stop
from trainer.config.evaluation import EvaluationConfig
from trainer.records.evaluations import Sample
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded


def continue_prompts(
    model: PreTrainedModel, tokenizer: Tokenizer, eos_id: int, options: EvaluationConfig, runtime: Runtime
) -> list[Sample]:
    """Continue each prompt by up to `new_tokens` tokens; an empty prompt begins a document. Called by every rank.

    The first one does it; with a model that is divided among them, all of them do, and what the first one has counts.
    """
    if not is_sharded(model):
        return runtime.on_first(lambda: _continue(model, tokenizer, eos_id, options, runtime.device, check_stop))
    samples = _continue(model, tokenizer, eos_id, options, runtime.device, runtime.check_stop)
    return runtime.on_first(lambda: samples)


@torch.no_grad()
def _continue(
    model: PreTrainedModel, tokenizer: Tokenizer, eos_id: int, options: EvaluationConfig, device: torch.device,
    check: Callable[[], None],
) -> list[Sample]:  # fmt: skip
    model.eval()
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
    sampling = {"temperature": options.temperature, "top_k": options.top_k} if options.temperature else {}
    samples = []
    for prompt in options.prompts:
        check()
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids or [eos_id]
        ids = ids[-max(1, limit - options.new_tokens) :]
        torch.manual_seed(options.seed)
        generate: Any = model.generate
        output = generate(
            torch.tensor([ids], device=device),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=device),
            max_new_tokens=min(options.new_tokens, limit - len(ids)),
            do_sample=options.temperature > 0,
            pad_token_id=eos_id,
            eos_token_id=eos_id,
            use_cache=True,
            synced_gpus=is_sharded(model),  # all ranks compute as many tokens
            **sampling,
        )
        samples.append(Sample(prompt=prompt, continuation=tokenizer.decode(output[0, len(ids) :].tolist())))
    return samples
