"""Low-rank adapters of pretrained models, by `peft`, which is loaded where there is one only.

An adapted model stays the class that it is, with `peft`'s layers in place of those that it adapts: all else that is
done with a model is done with it. Only what is trained is saved.
"""

import difflib
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trainer.common.errors import ArtifactError, ConfigError
from trainer.config.models import LoraConfig
from trainer.models.pretrained import classifies_words
from trainer.models.quantized import dequantize, dequantized, is_quantized, weights_in
from trainer.models.weights import ADAPTER_WEIGHTS, BASE, PREFIX, SETTINGS, Base, describe_settings
from trainer.store.private_folders import followed

LINEAR = (nn.Linear, Conv1D)
"""What can be adapted; GPT-2 has its linear layers in the second form."""

NEAREST = 3
"""Names that are told where one matches nothing."""


class Trained(NamedTuple):
    """The parameters that are trained, and all of the model with what is added to it."""

    trained: int
    parameters: int


def is_adapted(model: nn.Module) -> bool:
    """Whether a model has an adapter."""
    return hasattr(model, "peft_config")


def used_parameters(model: nn.Module) -> list[nn.Parameter]:
    """A model's parameters, without an adapted head's former weights, which stay beside those that are trained."""
    return [each for name, each in model.named_parameters() if ".original_module." not in name]


def count_trained(model: nn.Module) -> Trained:
    """The parameters of an adapted model."""
    used = used_parameters(model)
    return Trained(sum(each.numel() for each in used if each.requires_grad), sum(map(weights_in, used)))


def add_adapter(model: PreTrainedModel, lora: LoraConfig, seed: int, heads: Iterable[str] = (), name: str = "") -> None:
    """Adapt a model in place, and freeze the rest: A is drawn by the seed, B is zero, and `heads` are trained whole.

    `name` is the base model's. Raises `ConfigError` if the targets match nothing that can be adapted.
    """
    from peft import LoraConfig as PeftLora

    named = sorted(heads)
    head = "TOKEN_CLS" if classifies_words([type(model).__name__]) else "SEQ_CLS"
    targets = find_targets(model, lora.targets, named)
    transposed = all(isinstance(model.get_submodule(target), Conv1D) for target in targets)
    torch.manual_seed(seed)
    _inject(model, PeftLora(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=_shortest(model, targets),  # type: ignore[arg-type]
        modules_to_save=named or None, fan_in_fan_out=transposed, base_model_name_or_path=name or None,
        task_type=head if named else "CAUSAL_LM", inference_mode=False,
    ))  # fmt: skip


def restore_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Adapt a base model in place as a folder says. Raises `ArtifactError` if what it holds does not fit the model."""
    from peft import LoraConfig as PeftLora

    settings = PeftLora.from_pretrained(str(folder))
    settings.inference_mode = False  # else nothing is trained
    _inject(model, settings)
    load_adapter(model, folder)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Set what is trained of an adapted model to what a folder holds. Raises `ArtifactError` if that does not fit."""
    from peft import set_peft_model_state_dict

    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
    shapes = {name: tensor.shape for name, tensor in adapter_tensors(model).items()}
    if other := sorted(
        name for name in {*shapes, *tensors} if name not in tensors or shapes.get(name) != tensors[name].shape
    ):
        misfits = ", ".join(other[:NEAREST])
        raise ArtifactError(f"{folder / ADAPTER_WEIGHTS} is not an adapter of this model: {misfits} do not fit it")
    set_peft_model_state_dict(model, tensors)


def adapter_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What is trained of an adapted model, by name."""
    from peft import get_peft_model_state_dict

    tensors: dict[str, torch.Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return tensors


def trained_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of a model: all of it, or its adapter."""
    return adapter_tensors(model) if is_adapted(model) else model.state_dict()


def save_model(
    model: PreTrainedModel, folder: Path, base: Base | None, tensors: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write a model as `from_pretrained` loads it, or what is trained beside a base model, as `peft` does.

    `tensors` are copies of what is saved, by default the model's own.
    """
    with followed(folder) as place:
        _save(model, place, base, tensors)


def _save(model: PreTrainedModel, folder: Path, base: Base | None, tensors: Mapping[str, torch.Tensor] | None) -> None:
    if base is None:
        model.save_pretrained(folder, state_dict=None if tensors is None else dict(tensors))
        return
    own: Any = model
    settings = {**own.peft_config["default"].to_dict(), "inference_mode": True}
    saved = adapter_tensors(model) if tensors is None else tensors
    tensors = {f"{PREFIX}{name}": each.contiguous() for name, each in saved.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    (folder / SETTINGS).write_text(describe_settings(settings), encoding="utf-8")
    (folder / BASE).write_text(base.model_dump_json(indent=2) + "\n", encoding="utf-8")
    own.config.architectures = [type(model).__name__]
    own.config.save_pretrained(folder)
    if own.can_generate():  # it may stop elsewhere than its base model
        own.generation_config.save_pretrained(folder)


@torch.no_grad()
def merge(model: PreTrainedModel) -> PreTrainedModel:
    """Add what the adapter computes to the weights of the layers that it adapts, in place: the model is then as any
    other, with the weights that quantised layers compute with.
    """
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            own: Any = module
            layer = own.get_base_layer()
            if is_quantized(layer):
                layer = dequantized(layer)
                layer.weight += own.get_delta_weight("default")
            else:
                module.merge()
            model.set_submodule(name, layer)
        elif isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.modules_to_save["default"])
    del model.peft_config
    dequantize(model)
    return model


def find_targets(model: PreTrainedModel, targets: list[str] | None, heads: Iterable[str]) -> list[str]:
    """The names of the modules that are adapted. Raises `ConfigError` if one of the targets matches none that can
    be.
    """
    head = {*heads, *_output_names(model)}
    linear = [name for name, module in model.named_modules() if isinstance(module, LINEAR) and not _routes(module)]
    if targets is None:
        return [name for name in linear if not _within(name, head)]
    named = {name: module for name, module in model.named_modules() if name}
    found: dict[str, None] = {}
    for target in targets:
        matched = [name for name in named if name == target or name.endswith(f".{target}")]
        if not matched:
            raise ConfigError(f"model.lora.targets: no module's name ends with {target!r}; {_nearest(target, linear)}")
        if other := [name for name in matched if name not in linear]:
            kind = type(named[other[0]]).__name__
            raise ConfigError(
                f"model.lora.targets: {other[0]} is a {kind}, and linear layers are adapted; {_nearest(target, linear)}"
            )
        if whole := [name for name in matched if _within(name, {*heads})]:
            raise ConfigError(
                f"model.lora.targets: {whole[0]} is of the head, which is trained whole; leave {target!r} out"
            )
        if tied := [name for name in matched if _is_tied(model, named[name])]:
            raise ConfigError(
                f"model.lora.targets: {tied[0]} shares its weight with the input embeddings, which an adapter that is "
                f"merged would change as well; leave {target!r} out"
            )
        found |= dict.fromkeys(matched)
    return list(found)


def _routes(module: nn.Module) -> bool:
    """Whether a linear layer of `transformers` is a router of experts: it returns more than one tensor, so an adapter
    cannot be added to its output.
    """
    return type(module).__name__.endswith("Router")


def find_heads(model: PreTrainedModel, made: Iterable[str]) -> list[str]:
    """The modules of a classifier that are trained whole: what stands outside of the body, and a pooler that is made
    anew.
    """
    body = model.base_model_prefix
    outside = [name for name, child in model.named_children() if name != body and any(True for _ in child.parameters())]
    within = {".".join(name.split(".")[:2]) for name in made if name.startswith(f"{body}.")}
    return sorted({*outside, *within})


def saved_heads(model: PreTrainedModel) -> list[str]:
    """The modules of an adapted model that are trained whole."""
    own: Any = model
    return list(own.peft_config["default"].modules_to_save or ())


def _inject(model: PreTrainedModel, settings: Any) -> None:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        # Of layers in both forms, each is adapted in its own, which it tells of.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        inject_adapter_in_model(settings, model)


def _shortest(model: PreTrainedModel, targets: list[str]) -> list[str]:
    """The ends of the targets' names, which other tools know them by, if no other module's name ends so; else the
    names.
    """
    chosen = {*targets}
    ends = {name.rpartition(".")[2] for name in targets}
    others = {name.rpartition(".")[2] for name, _ in model.named_modules() if name not in chosen}
    return sorted(ends) if not ends & others else sorted(targets)


def _output_names(model: PreTrainedModel) -> set[str]:
    output = model.get_output_embeddings()
    return {name for name, module in model.named_modules() if output is not None and module is output}


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _is_tied(model: PreTrainedModel, module: nn.Module) -> bool:
    embeddings = model.get_input_embeddings()
    return getattr(module, "weight", None) is getattr(embeddings, "weight", math.nan)


def _nearest(target: str, linear: list[str]) -> str:
    """The names of layers that can be adapted that are the most like a target's."""
    ends = sorted({name.rpartition(".")[2] for name in linear})
    close = difflib.get_close_matches(target.rpartition(".")[2], ends, NEAREST, 0.0)
    return f"the nearest are {', '.join(close)}; in all there are {', '.join(ends)}"
