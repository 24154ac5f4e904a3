"""The memory that a training job takes, estimated from its model and settings, and measured for small models."""

from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from trainer.common.cgroups import memory_limit
from trainer.common.display import plural, size
from trainer.common.errors import DeviceError
from trainer.config.engines import RayEngine
from trainer.config.runs import RunJob
from trainer.config.training import OptimizationConfig, TrainingConfig
from trainer.data.step_plan import divide_batch
from trainer.models.adapters import count_trained
from trainer.models.causal import Units, count_units
from trainer.models.layers import require_checkpointing
from trainer.training.part_saver import FILE_BYTES
from trainer.training.runtime import count_gpus
from trainer.training.step import FLOAT_BYTES, state_bytes

GRADIENT_BYTES = FLOAT_BYTES
"""Bytes per parameter of gradients. Those of several ranks are in DDP's buckets; accumulated ones are held besides."""
WEIGHT_BYTES = FLOAT_BYTES
"""Bytes per weight."""
QUANTISED_BYTES = {"nf4": 0.6, "int8": 1.1}
"""Bytes per quantised weight, including the scales of its block."""

LOADED_LATER = 10**8
"""Measured bytes of libraries loaded only during training, including the stacks of their threads."""

LENGTH = 256
"""Maximum tokens with which a model's activations are measured."""

UNKNOWN_SHAPE = 4
"""Width of a feed-forward layer relative to the model's, if the configuration does not specify it."""


class Memory(NamedTuple):
    """Maximum bytes per rank of device memory and of host memory, which are the same without a GPU.

    Only rank 0 holds copies for a checkpoint; with a sharded model, each rank holds those of its rows.
    """

    device: int
    host: int


class Size(NamedTuple):
    """Number of trained parameters and of all parameters, bytes of a checkpoint, and the memory per rank."""

    trained: int
    parameters: int
    checkpoint: int
    memory: Memory


class Activations(NamedTuple):
    """Bytes kept from the forward to the backward pass: a fixed number, per token, and per pair of tokens in a row."""

    fixed: float
    per_token: float
    per_pair: float


def measure_size(job: RunJob, model: PreTrainedModel, ranks: int, length: int, kept: Activations | None = None) -> Size:
    """The size of a model, which may be on no device, and the memory to train it on rows of `length` tokens.

    Its activations are estimated if `kept` is not given. Raises `ConfigError` if it cannot be trained as configured.
    """
    training, config = job.training, model.config
    if training.gradient_checkpointing:
        require_checkpointing(model)
    counted, state = count_trained(model), state_bytes(model, training)
    units = count_units(model) if training.sharding == "fsdp" else None
    kept = kept or guess_activations(config, training)
    memory = estimate_memory(
        training, length, config, ranks, counted.parameters, kept, library_bytes(), state, units, counted.trained,
        getattr(job.model, "quantize", None),
    )  # fmt: skip
    return Size(*counted, WEIGHT_BYTES * counted.trained + state, memory)


def require_memory(job: RunJob, needed: Size, ranks: int) -> None:
    """Raise `DeviceError` if this machine cannot hold even the weights of a model and their gradients."""
    training = job.training
    quantize: str | None = getattr(job.model, "quantize", None)
    trained, parameters, memory = needed.trained, needed.parameters, needed.memory
    if isinstance(job.engine, RayEngine):  # the ranks run on other machines
        return
    least = int(frozen_bytes(quantize, training) * (parameters - trained)) + (WEIGHT_BYTES + GRADIENT_BYTES) * trained
    gpus = count_gpus(training.device)
    total = torch.cuda.get_device_properties(0).total_memory if gpus else host_memory()
    divided = training.sharding == "fsdp"
    needed_bytes = (least // ranks if divided else least) if gpus else (least if divided else least * ranks)
    if needed_bytes > total and not (gpus and training.cpu_offload):
        place = "of a GPU" if gpus else f"of this machine for {plural(ranks, 'rank')}"
        raise DeviceError(
            f"a model of {parameters:,} parameters is too large to train here: its weights and gradients alone take "
            f"{size(needed_bytes)}, and training takes about {size(memory.device)} per rank, but the memory {place} is "
            f"{size(total)}; use a smaller model (model.config, model.pretrained), train an adapter (model.lora), or "
            "shard the model across more GPUs (training.sharding: fsdp)"
        )


def host_memory() -> int:
    """Bytes of this machine's memory, or of its part that a container may use."""
    total: int = psutil.virtual_memory().total
    return min(total, memory_limit() or total)


def library_bytes() -> int:
    """Host memory of this process, mostly libraries while no model is loaded, plus that of libraries loaded later."""
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
    state: int,
    units: Units | None = None,
    trained: int | None = None,
    quantize: str | None = None,
) -> Memory:
    """Estimate the memory of training on rows of `length` tokens.

    `libraries` are the bytes of the process without a model, `state` those of the optimizer's state. `units` are given
    for a sharded model. `trained` is the number of parameters that are not frozen; frozen ones may be quantised.
    """
    gpu = count_gpus(training.device) > 0
    _, accumulation = divide_batch(training, ranks)
    activations = activation_bytes(training, length, config, ranks, kept, gpu)
    if units is not None:
        shares = divide(training, units, ranks, state)
        computed = shares.gathered + shares.accumulated + activations
        # Rank 0 assembles each file of the final model from whole layers.
        file = min(max(FILE_BYTES, WEIGHT_BYTES * units.largest_block), WEIGHT_BYTES * parameters)
        host = libraries + shares.copies + file
        if gpu and training.cpu_offload:
            return Memory(computed, host + shares.state)
        if gpu:
            return Memory(shares.state + computed, host)
        return Memory(host + shares.state + computed, host + shares.state + computed)
    trained = parameters if trained is None else trained
    copies = WEIGHT_BYTES * trained + state  # of rank 0, for a checkpoint
    gradients = GRADIENT_BYTES * trained * (2 if ranks > 1 and accumulation > 1 else 1)
    frozen = int(frozen_bytes(quantize, training) * (parameters - trained))
    computed = WEIGHT_BYTES * trained + state + gradients + frozen + activations
    host = libraries + copies
    return Memory(computed, host) if gpu else Memory(host + computed, host + computed)


def frozen_bytes(quantize: str | None, training: OptimizationConfig) -> float:
    """Bytes per frozen weight. On a CPU the model is loaded unquantised first."""
    return QUANTISED_BYTES.get(quantize or "", WEIGHT_BYTES) if count_gpus(training.device) else WEIGHT_BYTES


def activation_bytes(
    training: OptimizationConfig, length: int, config: PretrainedConfig, ranks: int, kept: Activations, gpu: bool
) -> int:
    """Bytes kept from the forward to the backward pass of a rank's micro-batch with rows of `length` tokens."""
    micro_batch, _ = divide_batch(training, ranks)
    pairs = 0.0 if gpu else kept.per_pair * length**2  # a GPU's attention keeps no scores
    rows = micro_batch * (kept.per_token * length + pairs)
    if training.gradient_checkpointing:  # the input of each layer, and the activations of one layer
        layers, width = _sizes(config, "num_hidden_layers", "hidden_size")
        rows = rows / max(layers, 1) + micro_batch * length * layers * width * 4
    return int(kept.fixed + rows)


class Shares(NamedTuple):
    """Bytes per rank of a sharded model.

    `state`: its rows of weights, gradients and the optimizer's state. `gathered`: parameters gathered during
    computation. `accumulated`: gradients of the whole model, if they are summed over the ranks only after the last
    micro-batch. `copies`: copies of its rows for a checkpoint, of which it writes the same number of bytes.
    """

    state: int
    gathered: int
    accumulated: int
    copies: int


def divide(training: OptimizationConfig, units: Units, ranks: int, state: int) -> Shares:
    """Memory per rank with FSDP; `state` are the bytes of the optimizer's state on all ranks.

    Parameters outside of the blocks stay gathered from the forward to the backward pass. Two blocks are gathered at a
    time, because the next one is gathered while one computes. Gradients have the type of the computation; while they
    are summed over the ranks, float32 copies of two blocks exist, one of them still in transfer. Gradients outside of
    the blocks exist from the head's backward pass on and are summed last. Evaluating the finished model needs less: it
    is gathered in float32 without gradients.
    """
    _, accumulation = divide_batch(training, ranks)
    width = WEIGHT_BYTES if training.precision == "fp32" else 2
    rows, outside, block = -(-units.parameters // ranks), units.outside, units.largest_block
    in_a_block = width * (2 * outside + 3 * block) + 2 * GRADIENT_BYTES * block
    at_the_end = (2 * width + GRADIENT_BYTES) * outside + GRADIENT_BYTES * block
    whole = accumulation > 1 and not training.sum_each_micro_batch
    saved = WEIGHT_BYTES * rows + -(-state // ranks)
    return Shares(
        state=saved + GRADIENT_BYTES * rows,
        gathered=max(in_a_block, at_the_end),
        accumulated=GRADIENT_BYTES * units.parameters if whole else 0,
        copies=saved,
    )


def measure_activations(objective: nn.Module, vocab_size: int, training: TrainingConfig) -> Activations:
    """Measure the activations of a model with its loss on the CPU: for one row, two rows, and one of half the length.

    Solves `f(rows, length) = fixed + rows * (token * length + pair * length**2)`.
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
    """Estimate the activations of a model that is too large to measure, from measured gpt2, llama and qwen3 models."""
    width, layers, feed_forward = _sizes(config, "hidden_size", "num_hidden_layers", "intermediate_size")
    values = 11 * width + 4.25 * (feed_forward or UNKNOWN_SHAPE * width)
    return Activations(0.0, layers * values * (4.0 if training.precision == "fp32" else 2.5), 0.0)


def _kept_bytes(objective: nn.Module, ids_BT: torch.Tensor, precision: str) -> int:
    """Bytes that autograd saves in a forward pass, without parameters."""
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
    """Numbers in a configuration; 0 for fields that are missing or set per layer."""
    text: Any = config.get_text_config()
    values = (getattr(text, name, 0) for name in names)
    return [each if isinstance(each, int) else 0 for each in values]
