"""Find the repeated blocks of a model: the layers that are sharded among ranks and gathered one at a time.

Also set a model's layers to training or evaluation mode for a block of code.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.common.errors import ConfigError

SKIPPING = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Model settings for skipping layers at random in training."""


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost `ModuleList`s with parameters, in order.

    The members of a list have one class, or are all `GradientCheckpointingLayer`s, as in models that mix attention and
    recurrent layers.
    """
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            members = list(child)
            weighty = all(any(True for _ in member.parameters()) for member in members)
            layers = all(isinstance(member, GradientCheckpointingLayer) for member in members)
            if members and weighty and (layers or len({type(member) for member in members}) == 1):
                found.extend(dict.fromkeys(members))
                continue
        found.extend(find_blocks(child))
    return found


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Within the block, put a model into training or evaluation mode."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def refuse_skipping(config: PretrainedConfig | None) -> None:
    """Raise `ConfigError` if layers are skipped at random in training, which several ranks cannot do."""
    for setting in SKIPPING:
        if share := getattr(config, setting, 0):
            raise ConfigError(
                f"the model's {setting} is {share}, but ranks that skip different layers wait for each other forever "
                f"(training.sharding: fsdp) or get different weights; set {setting} to 0, or train on one rank with "
                "training.sharding: none"
            )


def require_checkpointing(model: PreTrainedModel) -> None:
    """Raise `ConfigError` if a model's code cannot recompute its activations."""
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"training.gradient_checkpointing is true, but transformers does not support it for a "
            f"{model.config.model_type!r} model; remove it; a smaller training.micro_batch saves memory too"
        )


def require_blocks(model: nn.Module, kind: str) -> list[nn.Module]:
    """Find the blocks; raises `ConfigError` if there are none, they share weights, or layers are skipped at random."""
    blocks = find_blocks(model)
    refuse_skipping(getattr(model, "config", None))
    if not blocks:
        raise ConfigError(
            f"training.sharding is fsdp, but a {kind!r} model as configured has no repeated blocks to shard; set "
            "training.sharding to none"
        )
    counts = Counter(id(parameter) for block in blocks for parameter in block.parameters())
    if any(number > 1 for number in counts.values()):
        raise ConfigError(
            f"training.sharding is fsdp, but layers of a {kind!r} model share weights, which cannot be gathered for "
            "one layer at a time; set training.sharding to none"
        )
    return blocks
