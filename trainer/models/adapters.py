"""Low-rank adapters (LoRA) of pretrained models, by `peft`, which is imported only if a model has an adapter.

An adapted model keeps its class; `peft`'s layers replace the adapted ones. Only trained parameters are saved.
"""

import difflib
import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trainer.common.display import some
from trainer.common.errors import ArtifactError, ConfigError, brief
from trainer.config.models import LoraConfig
from trainer.models.pretrained import classifies_words
from trainer.models.quantized import Form, dequantize, dequantized, is_quantized, quantize_base, weights_in
from trainer.models.weights import ADAPTER_WEIGHTS, BASE, PREFIX, SETTINGS, Base, describe_settings
from trainer.store.private_folders import followed

log = logging.getLogger(__name__)

LINEAR = (nn.Linear, Conv1D)
"""Layers that can be adapted; GPT-2's linear layers are of the second class."""

FUSED = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
"""Model types whose out_proj `peft` refuses, because their fused kernels read its weight without the adapter
(`_check_lora_target_modules_mamba` in peft/tuners/tuners_utils.py)."""

NEAREST = 3
"""How many similar names an error lists."""


class Trained(NamedTuple):
    """The number of trained parameters, and of all parameters, adapter included."""

    trained: int
    parameters: int


def is_adapted(model: nn.Module) -> bool:
    """Whether a model has an adapter."""
    return hasattr(model, "peft_config")


def used_parameters(model: nn.Module) -> list[nn.Parameter]:
    """A model's parameters, without the former weights of a trained head, which `peft` keeps."""
    return [each for name, each in model.named_parameters() if ".original_module." not in name]


def count_trained(model: nn.Module) -> Trained:
    """Count the parameters of a model, which may have an adapter."""
    used = used_parameters(model)
    return Trained(sum(each.numel() for each in used if each.requires_grad), sum(map(weights_in, used)))


def add_adapter(
    model: PreTrainedModel, lora: LoraConfig, seed: int, heads: Iterable[str] = (), quantize: Form | None = None
) -> None:
    """Adapt a model in place and freeze the rest: A is drawn by the seed, B is zero, and `heads` are trained fully.

    With `quantize`, the base is quantised. Raises `ConfigError` if a target matches no layer that can be adapted, or
    as `quantize_base`.
    """
    from peft import LoraConfig as PeftLora

    named = sorted(heads)
    head = "TOKEN_CLS" if classifies_words([type(model).__name__]) else "SEQ_CLS"
    targets = find_targets(model, lora.targets, named)
    transposed = all(isinstance(model.get_submodule(target), Conv1D) for target in targets)
    quantize_base(model, quantize)  # after the targets are found: copies of a shared weight are quantised apart
    torch.manual_seed(seed)
    _inject(model, PeftLora(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=_shortest(model, targets),  # type: ignore[arg-type]
        modules_to_save=named or None, fan_in_fan_out=transposed,
        task_type=head if named else "CAUSAL_LM", inference_mode=False,
    ))  # fmt: skip


def restore_adapter(model: PreTrainedModel, folder: Path, quantize: Form | None = None) -> None:
    """Put the adapter of a folder into a base model in place, which `quantize` quantises.

    Raises `ArtifactError` if the adapter does not fit the model.
    """
    from peft import LoraConfig as PeftLora

    settings = PeftLora.from_pretrained(str(folder))
    settings.inference_mode = False  # otherwise all parameters are frozen
    shared = _shared_weights(model)
    if wrong := [name for name in shared if any(_matches(name, target) for target in settings.target_modules)]:
        raise ArtifactError(
            f"the adapter in {folder} adapts {wrong[0]}, which shares its weight with {shared[wrong[0]]}, so that "
            "merging it would change both; train it again under another `run`, without these layers"
        )
    quantize_base(model, quantize)
    _inject(model, settings)
    load_adapter(model, folder)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Load the trained tensors of an adapted model from a folder; raises `ArtifactError` if they do not fit."""
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
    """The trained tensors of an adapted model, by name."""
    from peft import get_peft_model_state_dict

    tensors: dict[str, torch.Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return tensors


def trained_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint holds: the adapter of an adapted model, else the whole model."""
    return adapter_tensors(model) if is_adapted(model) else model.state_dict()


def save_model(
    model: PreTrainedModel, folder: Path, base: Base | None, tensors: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write a model as `from_pretrained` loads it, or, with a base model, its adapter as `peft` loads it.

    `tensors` are copies of the tensors to save, by default the model's own.
    """
    with followed(folder) as place:
        _save(model, place, base, tensors)


def _save(model: PreTrainedModel, folder: Path, base: Base | None, tensors: Mapping[str, torch.Tensor] | None) -> None:
    if base is None:
        model.save_pretrained(folder, state_dict=None if tensors is None else dict(tensors))
        return
    own: Any = model
    place = base.path or base.key or base.name  # read by peft, which knows no names of runs
    settings = {**own.peft_config["default"].to_dict(), "inference_mode": True, "base_model_name_or_path": place}
    saved = adapter_tensors(model) if tensors is None else tensors
    tensors = {f"{PREFIX}{name}": each.contiguous() for name, each in saved.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    (folder / SETTINGS).write_text(describe_settings(settings), encoding="utf-8")
    (folder / BASE).write_text(base.model_dump_json(indent=2) + "\n", encoding="utf-8")
    own.config.architectures = [type(model).__name__]
    own.config.save_pretrained(folder)
    if own.can_generate():  # its end tokens may differ from the base model's
        own.generation_config.save_pretrained(folder)


@torch.no_grad()
def merge(model: PreTrainedModel) -> PreTrainedModel:
    """Merge the adapter into the weights of its layers, in place; quantised layers are dequantised first."""
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    # Inner layers first: two adapted tensors of one module, such as a mixture's experts, are wrapped one in the other.
    for name, module in reversed(list(model.named_modules())):
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
    """The names of the modules to adapt; raises `ConfigError` if a target matches a module that cannot be, or none."""
    head = {*heads, *_output_names(model)}
    linear = [name for name, module in model.named_modules() if isinstance(module, LINEAR) and not _routes(module)]
    shared = _shared_weights(model)
    if targets is None:
        if left := [name for name in linear if name in shared and not _within(name, head)]:
            log.info("not adapted, because they share their weights, which merging would change: %s", some(left))
        fused = model.config.model_type in FUSED
        free = [name for name in linear if name not in shared and not _within(name, head)]
        return [name for name in free if not (fused and _matches(name, "out_proj"))]
    named = {name: module for name, module in model.named_modules() if name}
    found: dict[str, None] = {}
    for target in targets:
        matched = [name for name in named if _matches(name, target)]
        if not matched:
            raise ConfigError(f"model.lora.targets: no module's name ends with {target!r}; {_nearest(target, linear)}")
        if other := [name for name in matched if name not in linear]:
            kind = type(named[other[0]]).__name__
            raise ConfigError(
                f"model.lora.targets: {other[0]} is a {kind}, but only linear layers can be adapted; "
                f"{_nearest(target, linear)}"
            )
        if whole := [name for name in matched if _within(name, {*heads})]:
            raise ConfigError(
                f"model.lora.targets: {whole[0]} is in the head, which is trained fully; remove {target!r}"
            )
        if tied := [name for name in matched if name in shared]:
            raise ConfigError(
                f"model.lora.targets: {tied[0]} shares its weight with {shared[tied[0]]}, which merging the adapter "
                f"would change as well; remove {target!r}"
            )
        found |= dict.fromkeys(matched)
    return list(found)


def _routes(module: nn.Module) -> bool:
    """Whether a linear layer routes to experts: it returns several tensors, so an adapter cannot be added to it."""
    return type(module).__name__.endswith("Router")


def find_heads(model: PreTrainedModel, made: Iterable[str]) -> list[str]:
    """The modules of a classifier that are trained fully: those outside its body, and a newly initialised pooler.

    `made` are the names of newly initialised weights.
    """
    body = model.base_model_prefix
    outside = [name for name, child in model.named_children() if name != body and any(True for _ in child.parameters())]
    within = {".".join(name.split(".")[:2]) for name in made if name.startswith(f"{body}.")}
    return sorted({*outside, *within})


def saved_heads(model: PreTrainedModel) -> list[str]:
    """The modules of an adapted model that are trained fully."""
    own: Any = model
    return list(own.peft_config["default"].modules_to_save or ())


def _inject(model: PreTrainedModel, settings: Any) -> None:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        # A model with both classes of linear layers causes this warning, though each is adapted correctly.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        # Said of the rank of a mixture's experts, which is not ignored.
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys did not match any")
        try:
            inject_adapter_in_model(settings, model)
        except ValueError as error:  # peft refuses some layers by their names, or has no form for them
            raise ConfigError(
                f"model.lora: peft cannot adapt this {model.config.model_type!r} model: {brief(error)}; set "
                "model.lora.targets to other layers"
            ) from error


def _shortest(model: PreTrainedModel, targets: list[str]) -> list[str]:
    """The last parts of the targets' names, as other tools use them, if no other module shares one; else full names."""
    chosen = {*targets}
    ends = {name.rpartition(".")[2] for name in targets}
    others = {name.rpartition(".")[2] for name, _ in model.named_modules() if name not in chosen}
    return sorted(ends) if not ends & others else sorted(targets)


def _output_names(model: PreTrainedModel) -> set[str]:
    output = model.get_output_embeddings()
    return {name for name, module in model.named_modules() if output is not None and module is output}


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _shared_weights(model: PreTrainedModel) -> dict[str, str]:
    """The modules whose weight other modules have too, each with one of these, such as "the input embeddings".

    A block that stands at several places counts once, because its adapter is used at all of them too.
    """
    embeddings = model.get_input_embeddings()
    holders: dict[int, dict[str, str]] = {}
    for within, parent in model.named_modules():  # each block once
        for end, child in parent._modules.items():
            weight = None if child is None else child._parameters.get("weight")
            if weight is not None:
                name = f"{within}.{end}".removeprefix(".")
                shown = "the input embeddings" if child is embeddings else name
                holders.setdefault(id(weight), {})[name] = shown
    return {
        name: next(shown for other, shown in names.items() if other != name)
        for names in holders.values() if len(names) > 1 for name in names
    }  # fmt: skip


def _nearest(target: str, linear: list[str]) -> str:
    """Describe the adaptable layers with the most similar names."""
    ends = sorted({name.rpartition(".")[2] for name in linear})
    close = difflib.get_close_matches(target.rpartition(".")[2], ends, NEAREST, 0.0)
    return f"the nearest are {', '.join(close)}; all are {', '.join(ends)}"
