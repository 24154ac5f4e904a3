"""The repeated blocks of a model: the layers that are divided among ranks, and gathered, one at a time."""

from collections import Counter

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.common.errors import ConfigError

SKIPPING = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Settings of a model by which layers are skipped at random while it trains."""


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost lists of modules with parameters, in their order.

    A list is of one class, or of what transformers takes for layers, as where some have attention and others a
    recurrence.
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


def require_blocks(model: nn.Module, kind: str) -> list[nn.Module]:
    """The same. Raises `ConfigError` if there are none, if they share weights, or if each rank would skip others at
    random.
    """
    blocks = find_blocks(model)
    for setting in SKIPPING:
        if share := getattr(getattr(model, "config", None), setting, 0):
            raise ConfigError(
                f"training.sharding is fsdp, but the model's {setting} is {share}: ranks that skip "
                f"different layers wait for each other without end; set {setting} to 0, or training.sharding to none"
            )
    if not blocks:
        raise ConfigError(
            f"training.sharding is fsdp, but a {kind!r} model as configured has no repeated blocks to divide among the "
            "ranks; set training.sharding to none"
        )
    held = Counter(id(parameter) for block in blocks for parameter in block.parameters())
    if any(number > 1 for number in held.values()):
        raise ConfigError(
            f"training.sharding is fsdp, but layers of a {kind!r} model share weights, which cannot be gathered for "
            "one layer at a time; set training.sharding to none"
        )
    return blocks
