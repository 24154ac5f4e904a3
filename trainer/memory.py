"""What a training job takes of a machine's memory, from its shape alone."""

from typing import Any, NamedTuple

import psutil
from transformers import PretrainedConfig

from trainer.config import TrainingConfig
from trainer.losses import LOGITS_AT_ONCE
from trainer.plan import divide_batch
from trainer.runtime import count_gpus

ADAM_BYTES = 16
"""A parameter's float32 weight, gradient, and AdamW's two means. The gradients of several ranks are DDP's buckets."""
COPIED_BYTES = 12
"""A parameter's weight and means, as they are copied to host memory for a checkpoint."""
CAST_BYTES = 2
"""A parameter in half precision, as autocast keeps it from the forward to the backward pass."""
SCORE_BYTES = 12
"""An attention score, its probability, and that after dropout, in float32: what attention with dropout keeps on a CPU."""
LOGIT_BYTES = 8
"""A logit and its gradient."""
DROPOUTS = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")


class Memory(NamedTuple):
    """Bytes that a rank takes at most: of its device's memory, and of the host's, which is the same without a GPU.

    Of several ranks only the first holds the copies of a checkpoint.
    """

    device: int
    host: int


def estimate_memory(training: TrainingConfig, config: PretrainedConfig, ranks: int, parameters: int) -> Memory:
    """What training takes, with AdamW; what this process takes now, with its libraries, is a part of the host's."""
    gpu = count_gpus(training.device) > 0
    state = ADAM_BYTES + (0 if training.precision == "fp32" else CAST_BYTES)
    computed = state * parameters + _activation_bytes(training, config, ranks, gpu)
    host = psutil.Process().memory_info().rss + COPIED_BYTES * parameters
    return Memory(computed, host) if gpu else Memory(host + computed, host + computed)


def _activation_bytes(training: TrainingConfig, config: PretrainedConfig, ranks: int, gpu: bool) -> int:
    """Activations: 34 bytes a token, layer and channel in half precision, twice that in float32, and the attention's scores
    where they are kept (Korthikanti et al., 2022, equation 2); and the logits that are made at a time.
    """
    text: Any = config.get_text_config()
    said = (getattr(text, name, 0) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    width, layers, heads = (each if isinstance(each, int) else 0 for each in said)  # some models say it of each layer
    micro_batch, _ = divide_batch(training, ranks)
    tokens = micro_batch * training.context
    per_channel = 68 if training.precision == "fp32" else 34
    scores = 0 if gpu or not any(getattr(text, name, 0) for name in DROPOUTS) else heads * training.context * SCORE_BYTES
    layer = width * per_channel + scores
    of_layers = layers * width * 4 + layer if training.gradient_checkpointing else layers * layer
    logits = min(tokens * int(text.vocab_size), LOGITS_AT_ONCE["cuda" if gpu else "cpu"])
    return tokens * of_layers + logits * LOGIT_BYTES
