"""What a training job takes of a machine's memory."""

from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from transformers import PretrainedConfig

from trainer.config.jobs import TrainingConfig
from trainer.order.plan import divide_batch
from trainer.training.runtime import count_gpus

ADAM_BYTES = 16
"""A parameter's float32 weight, gradient, and AdamW's two means. Without accumulation, gradients of several
ranks are DDP's buckets."""
GRADIENT_BYTES = 4
"""A parameter's gradient of earlier micro-batches, beside DDP's buckets."""
COPIED_BYTES = 12
"""A parameter's weight and means, as they are copied to host memory for a checkpoint."""

LOADED_LATER = 10**8
"""Bytes of what is loaded only while training, with the stacks of its threads: measured."""

LENGTH = 256
"""Tokens that a model is measured with at most."""

UNKNOWN_SHAPE = 4
"""Channels of a feed-forward layer for each of the model's, where its configuration does not say."""


class Memory(NamedTuple):
    """Bytes that a rank takes at most: of its device's memory, and of the host's, which is the same without a GPU.

    Of several ranks only the first holds the copies of a checkpoint.
    """

    device: int
    host: int


class Activations(NamedTuple):
    """Bytes that are kept from the forward to the backward pass: at any rate, for each token, and for each pair of a row's."""

    fixed: float
    per_token: float
    per_pair: float


def library_bytes() -> int:
    """What this process takes of the host's memory now, most of it libraries while there is no model, and those to come."""
    resident: int = psutil.Process().memory_info().rss
    return resident + LOADED_LATER


def estimate_memory(
    training: TrainingConfig, config: PretrainedConfig, ranks: int, parameters: int, kept: Activations, libraries: int
) -> Memory:
    """What training takes, with AdamW, in a process whose libraries take so many bytes."""
    gpu = count_gpus(training.device) > 0
    micro_batch, accumulation = divide_batch(training, ranks)
    pairs = 0.0 if gpu else kept.per_pair * training.context**2  # a GPU's attention keeps no scores
    state = ADAM_BYTES + (GRADIENT_BYTES if ranks > 1 and accumulation > 1 else 0)
    rows = micro_batch * (kept.per_token * training.context + pairs)
    if training.gradient_checkpointing:  # the input of each layer, and one layer at a time
        layers, width = _sizes(config, "num_hidden_layers", "hidden_size")
        rows = rows / max(layers, 1) + micro_batch * training.context * layers * width * 4
    computed = int(state * parameters + kept.fixed + rows)
    host = libraries + COPIED_BYTES * parameters
    return Memory(computed, host) if gpu else Memory(host + computed, host + computed)


def measure_activations(objective: nn.Module, vocab_size: int, training: TrainingConfig) -> Activations:
    """Count what a model with its loss keeps, on this machine's processor, for one row, two, and one of half the length.

    From `f(rows, length) = fixed + rows * (token * length + pair * length**2)`.
    """
    length = min(training.context, LENGTH) // 2 * 2
    one, two, half = (
        _kept_bytes(objective, torch.arange(rows * size).reshape(rows, size) % vocab_size, training.precision)
        for rows, size in ((1, length), (2, length), (1, length // 2))
    )
    row, fixed = two - one, 2 * one - two
    per_pair = max(0.0, 2 * (row - 2 * (half - fixed)) / length**2)
    return Activations(fixed, row / length - per_pair * length, per_pair)


def guess_activations(config: PretrainedConfig, training: TrainingConfig) -> Activations:
    """The same for a model that is too large to be tried: as of gpt2, llama and qwen3 models, which were measured."""
    width, layers, feed_forward = _sizes(config, "hidden_size", "num_hidden_layers", "intermediate_size")
    values = 11 * width + 4.25 * (feed_forward or UNKNOWN_SHAPE * width)
    return Activations(0.0, layers * values * (4.0 if training.precision == "fp32" else 2.5), 0.0)


def _kept_bytes(objective: nn.Module, ids_BT: torch.Tensor, precision: str) -> int:
    """Bytes of what autograd saves in a forward pass, the parameters left out."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"),
    ):
        loss = objective(ids_BT)
    size = sum(storage.nbytes() for storage in found.values())
    del loss
    return size


def _sizes(config: PretrainedConfig, *names: str) -> list[int]:
    """Numbers of a configuration; 0 for what it has not, or says of each layer."""
    text: Any = config.get_text_config()
    said = (getattr(text, name, 0) for name in names)
    return [each if isinstance(each, int) else 0 for each in said]
