"""What a training job takes of a machine's memory."""

from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from transformers import PretrainedConfig

from trainer.common.errors import DeviceError
from trainer.common.formats import plural, size
from trainer.config.engines import RayEngine
from trainer.config.training import OptimizationConfig, TrainingConfig
from trainer.data.step_plan import divide_batch
from trainer.models.causal import Units
from trainer.training.identity import TrainingJob
from trainer.training.part_saver import FILE_BYTES
from trainer.training.runtime import count_gpus

ADAM_BYTES = 16
"""A parameter's float32 weight, gradient, and AdamW's two means. Without accumulation, gradients of several
ranks are DDP's buckets."""
GRADIENT_BYTES = 4
"""A parameter's gradient of earlier micro-batches, beside DDP's buckets, or where it is summed over the ranks."""
WEIGHT_BYTES = 4
"""A parameter's float32 weight."""
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

    Of several ranks only the first holds the copies of a checkpoint; of a sharded model, each those of its rows.
    """

    device: int
    host: int


class Activations(NamedTuple):
    """Bytes that are kept from the forward to the backward pass: at any rate, for each token, and for each pair of a row's."""

    fixed: float
    per_token: float
    per_pair: float


def require_memory(job: TrainingJob, trained: int, parameters: int, ranks: int, memory: Memory) -> None:
    """Raise `DeviceError` if this machine cannot hold so much as the weights of a model and their gradients."""
    training = job.training
    if isinstance(job.engine, RayEngine):  # other machines have the ranks
        return
    least = WEIGHT_BYTES * parameters + GRADIENT_BYTES * trained
    gpus = count_gpus(training.device)
    there = torch.cuda.get_device_properties(0).total_memory if gpus else psutil.virtual_memory().total
    divided = training.sharding == "fsdp"
    held = (least // ranks if divided else least) if gpus else (least if divided else least * ranks)
    if held > there and not (gpus and training.cpu_offload):
        place = "of a GPU" if gpus else f"of this machine for {plural(ranks, 'rank')}"
        raise DeviceError(
            f"a model of {parameters:,} parameters is too large to be trained here: its weights and gradients alone take "
            f"{size(held)}, and training takes about {size(memory.device)} a rank, but the memory {place} is "
            f"{size(there)}; take a smaller model (model.config, model.pretrained), train an adapter (model.lora), or divide "
            "it among more GPUs (training.sharding: fsdp)"
        )


def library_bytes() -> int:
    """What this process takes of the host's memory now, most of it libraries while there is no model, and those to come."""
    resident: int = psutil.Process().memory_info().rss
    return resident + LOADED_LATER


def estimate_memory(
    training: OptimizationConfig,
    length: int,
    config: PretrainedConfig,
    ranks: int,
    parameters: int,
    kept: Activations,
    libraries: int,
    units: Units | None = None,
    trained: int | None = None,
) -> Memory:
    """What training on rows of so many tokens takes, with AdamW, in a process whose libraries take so many bytes; of a sharded
    model of these `units`, or one of which so many parameters are `trained`, and the others frozen."""
    gpu = count_gpus(training.device) > 0
    _, accumulation = divide_batch(training, ranks)
    activations = activation_bytes(training, length, config, ranks, kept, gpu)
    if units is not None:
        shares = divide(training, units, ranks)
        computed = shares.gathered + shares.accumulated + activations
        # A file of the final model is put together on rank 0, of whole layers.
        file = min(max(FILE_BYTES, WEIGHT_BYTES * units.largest_block), WEIGHT_BYTES * parameters)
        host = libraries + shares.copies + file
        if gpu and training.cpu_offload:
            return Memory(computed, host + shares.state)
        if gpu:
            return Memory(shares.state + computed, host)
        return Memory(host + shares.state + computed, host + shares.state + computed)
    state = ADAM_BYTES + (GRADIENT_BYTES if ranks > 1 and accumulation > 1 else 0)
    trained = parameters if trained is None else trained
    computed = state * trained + WEIGHT_BYTES * (parameters - trained) + activations
    host = libraries + COPIED_BYTES * trained
    return Memory(computed, host) if gpu else Memory(host + computed, host + computed)


def activation_bytes(
    training: OptimizationConfig, length: int, config: PretrainedConfig, ranks: int, kept: Activations, gpu: bool
) -> int:
    """What is kept from the forward to the backward pass of a rank's micro-batch, of rows of so many tokens."""
    micro_batch, _ = divide_batch(training, ranks)
    pairs = 0.0 if gpu else kept.per_pair * length**2  # a GPU's attention keeps no scores
    rows = micro_batch * (kept.per_token * length + pairs)
    if training.gradient_checkpointing:  # the input of each layer, and one layer at a time
        layers, width = _sizes(config, "num_hidden_layers", "hidden_size")
        rows = rows / max(layers, 1) + micro_batch * length * layers * width * 4
    return int(kept.fixed + rows)


class Shares(NamedTuple):
    """Bytes that a rank holds of a sharded model: its rows of weights, gradients and means; what is gathered while it computes;
    gradients of the whole model, where they are summed over the ranks after the last micro-batch only; the copies of its rows
    for a checkpoint, of which it writes the same number."""

    state: int
    gathered: int
    accumulated: int
    copies: int


def divide(training: OptimizationConfig, units: Units, ranks: int) -> Shares:
    """What FSDP leaves to each of some ranks, with AdamW.

    What is outside of the blocks stays gathered from the forward to the backward pass; of the blocks there are two, as the next
    one is gathered while one computes. Gradients are of the type that is computed in; where they are summed over the ranks they
    are float32 as well, of one block while those of the block before are still on their way. Those of what is outside are
    there from the head's on, and summed last. To measure the finished model takes less: it is gathered in float32, without
    gradients, beside the weights alone.
    """
    _, accumulation = divide_batch(training, ranks)
    width = WEIGHT_BYTES if training.precision == "fp32" else 2
    rows, outside, block = -(-units.parameters // ranks), units.outside, units.largest_block
    in_a_block = width * (2 * outside + 3 * block) + 2 * GRADIENT_BYTES * block
    at_the_end = (2 * width + GRADIENT_BYTES) * outside + GRADIENT_BYTES * block
    whole = accumulation > 1 and not training.sum_each_micro_batch
    return Shares(
        state=ADAM_BYTES * rows,
        gathered=max(in_a_block, at_the_end),
        accumulated=GRADIENT_BYTES * units.parameters if whole else 0,
        copies=COPIED_BYTES * rows,
    )


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


def guess_activations(config: PretrainedConfig, training: OptimizationConfig) -> Activations:
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
