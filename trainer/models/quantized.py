"""Quantise the linear layers of an adapter's base model to 4 or 8 bits (Dettmers et al. 2023, "QLoRA"; 2022,
"LLM.int8()") with `bitsandbytes`, which is imported only if requested.

The quantised values depend only on the weights, so a resumed run has the same. The head, embeddings and norms are not
quantised.
"""

import logging
import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.common.errors import ConfigError

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of casts at each step

Form = Literal["nf4", "int8"]

MARKS = {"nf4": "is_loaded_in_4bit", "int8": "is_loaded_in_8bit"}
"""Model attributes by which `peft` selects its layer classes."""


def check_installed(form: Form | None) -> None:
    """Raise `ConfigError` if bitsandbytes is needed but not installed."""
    if form is not None and find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"model.quantize is {form!r}, but bitsandbytes is not installed: pip install 'headrace[quantize]', or "
            "remove model.quantize"
        )


def refuse_quantized(model: PreTrainedModel) -> None:
    """Raise `ConfigError` if a pretrained model was loaded with quantised weights, which training would not change.

    Methods that are aware of training, such as BitNet's, keep weights that it changes.
    """
    if getattr(model, "is_quantized", False) and not cast(Any, model).hf_quantizer.is_qat_trainable:
        method = model.config.quantization_config.quant_method
        method = getattr(method, "value", method)
        raise ConfigError(
            f"model {model.name_or_path!r} has quantised weights ({method}), which cannot be trained; use the model "
            "that it was quantised from"
        )


def quantize_base(model: PreTrainedModel, form: Form | None) -> None:
    """Quantise the linear layers of a model except its head, in place.

    Raises `ConfigError` if bitsandbytes is not installed, or the model has no such layers.
    """
    if form is None:
        return
    check_installed(form)
    head = model.get_output_embeddings()
    layers = {name: each for name, each in model.named_modules() if type(each) is nn.Linear and each is not head}
    if not layers:
        raise ConfigError(
            f"model.quantize is {form!r}, but a {model.config.model_type!r} model has no linear layers that "
            "bitsandbytes can quantise; remove model.quantize"
        )
    for name, layer in layers.items():
        model.set_submodule(name, _quantized(layer, form))
    setattr(model, MARKS[form], True)


def is_quantized(layer: nn.Module) -> bool:
    """Whether a layer is quantised."""
    return hasattr(getattr(layer, "weight", None), "quant_state") or hasattr(getattr(layer, "weight", None), "SCB")


def weights_in(parameter: torch.Tensor) -> int:
    """The number of weights in a parameter; with 4 bits, a byte holds two."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(math.prod(state.shape))


@torch.no_grad()
def dequantized(layer: Any) -> nn.Linear:
    """A plain layer with the dequantised weights of a quantised one."""
    from peft.utils.integrations import dequantize_bnb_weight

    _follow(layer, layer.weight.device)
    plain = nn.Linear(layer.in_features, layer.out_features, layer.added is not None, device=layer.weight.device)
    plain.weight.copy_(dequantize_bnb_weight(layer.weight, state=getattr(layer, "state", None)))
    if layer.added is not None and plain.bias is not None:
        plain.bias.copy_(layer.added)
    return plain


def dequantize(model: PreTrainedModel) -> None:
    """Dequantise all layers, in place."""
    for name, layer in list(model.named_modules()):
        if is_quantized(layer):
            model.set_submodule(name, dequantized(layer))
    for mark in MARKS.values():
        if hasattr(model, mark):
            delattr(model, mark)


def _quantized(layer: nn.Linear, form: Form) -> nn.Module:
    """A quantised layer; a hook adds its bias, as bitsandbytes would permanently round it to the input's type."""
    made: Any = import_module("bitsandbytes").nn
    if form == "nf4":
        new = made.Linear4bit(layer.in_features, layer.out_features, False, quant_type="nf4", compress_statistics=False)
        new.weight = made.Params4bit(
            layer.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=False
        )
        new.support_avx512bf16_for_cpu = False  # otherwise an evaluation would round weights for later training
    else:
        new = made.Linear8bitLt(layer.in_features, layer.out_features, False, has_fp16_weights=False)
        new.weight = made.Int8Params(layer.weight.data, requires_grad=False, has_fp16_weights=False)
    new.added = None if layer.bias is None else nn.Parameter(layer.bias.data, requires_grad=False)
    new.register_forward_pre_hook(_prepare)
    new.register_forward_hook(_add)
    quantized: nn.Module = new.to(layer.weight.device)  # `to` quantises
    return quantized


def _prepare(layer: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Move a layer to the device of its input, and compute in autocast's type if it is enabled."""
    device = inputs[0].device
    _follow(layer, device)
    kind = device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs[0].dtype
    if hasattr(layer, "compute_dtype"):
        layer.compute_dtype = dtype  # by default it would be the type of the first input
    return tuple(each.to(dtype) for each in inputs)


def _add(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    return output if layer.added is None else output + layer.added.to(output.dtype)


def _follow(layer: Any, device: torch.device) -> None:
    """Move the values that an 8-bit layer holds besides its parameters to their device."""
    state = getattr(layer, "state", None)
    for name in ("CB", "SCB"):
        if (tensor := getattr(state, name, None)) is not None and tensor.device != device:
            setattr(state, name, tensor.to(device))
