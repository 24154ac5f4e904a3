"""Models: any causal language model that `transformers` knows, new or pretrained."""

import difflib
import json
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging
from transformers.activations import NewGELUActivation

from trainer.config import ModelConfig
from trainer.errors import ConfigError, TokenizerError
from trainer.tokenizer import TOKENIZER_FILE, TokenizerInfo, vocabulary

transformers_logging.disable_progress_bar()

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""What a pretrained folder keeps its weights in; nothing that would have to be unpickled."""


def resolve_config(options: ModelConfig, tokenizer: TokenizerInfo, context: int) -> PretrainedConfig:
    """The model's full configuration, checked against the tokenizer and the window length.

    Raises `ConfigError` for unknown keys and impossible values, `TokenizerError` if tokenizer and model do not match.
    """
    if options.pretrained is not None:
        config = _pretrained_config(options.pretrained)
        _check_same_vocabulary(options.pretrained, tokenizer)
    else:
        config = _new_config(options, tokenizer)
    vocab_size = config.get_text_config().vocab_size
    if tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer's largest id is {tokenizer.max_id}, but the model has {vocab_size} embeddings; "
            "use the model's own tokenizer, or a new model"
        )
    check_positions(config, context, "training.context")
    return config


def check_positions(config: PretrainedConfig, context: int, setting: str) -> None:
    """Raise `ConfigError` if a window is longer than the positions that the model knows."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and context > positions:
        raise ConfigError(f"{setting} is {context}, but the model has {positions} positions")


def count_parameters(config: PretrainedConfig, attention: str | None = None, kind: Any = AutoModelForCausalLM) -> int:
    """Parameters of a model of some kind, found without allocating them. Raises `ConfigError` if it cannot be built."""
    try:
        with torch.device("meta"):
            model: PreTrainedModel = kind.from_config(config, attn_implementation=attention)
    except Exception as error:  # architectures check their settings each in their own way
        raise ConfigError(f"a {config.model_type!r} model cannot be built from this configuration: {error}") from error
    return sum(parameter.numel() for parameter in model.parameters())


def build_model(options: ModelConfig, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A float32 model: pretrained, or new with weights decided by the seed."""
    torch.manual_seed(seed)
    if options.pretrained is not None:
        return load_model(options.pretrained, options.attention)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=options.attention
    )
    return fuse_activations(model)


def load_model(path: str | Path, attention: str | None = None) -> PreTrainedModel:
    """A float32 model from a folder that `save_pretrained` wrote, or a pretrained name. Raises `ConfigError`."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
    except Exception as error:  # hub, file system and format errors alike
        raise ConfigError(f"model {str(path)!r} cannot be loaded: {error}") from error
    return fuse_activations(model)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Have the model recompute its activations in the backward pass instead of keeping them."""
    # transformers 5.23 warns of the method's old name; 5.0 has no other.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


def fuse_activations(model: PreTrainedModel) -> PreTrainedModel:
    """Replace the tanh form of GELU that is spelt out in eight operations by the one operation that computes the same."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


def _new_config(options: ModelConfig, tokenizer: TokenizerInfo) -> PretrainedConfig:
    values = _read_values(options.config) if isinstance(options.config, str) else dict(options.config or {})
    where = f"model config {options.config}" if isinstance(options.config, str) else "model.config"
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        close = difflib.get_close_matches(str(kind), list(CONFIG_MAPPING), 3)
        raise ConfigError(
            f"{where}: model_type {kind!r} is not one that transformers knows" + (f"; did you mean {close}?" if close else "")
        )
    default = AutoConfig.for_model(kind)
    known = {*default.to_dict(), *default.attribute_map}
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            raise ConfigError(f"{where}: unknown key {key!r} for {kind!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    multiple = options.pad_vocab_to
    values.setdefault("vocab_size", -(-tokenizer.vocab_size // multiple) * multiple)
    eos = tokenizer.eos_id
    try:
        config: PretrainedConfig = AutoConfig.for_model(kind, **{"bos_token_id": eos, "eos_token_id": eos, **values})
    except Exception as error:  # each architecture validates with errors of its own
        raise ConfigError(f"{where}: {error}") from error
    return config


def _read_values(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"model config {path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"model config {path}: a mapping of keys was expected, found {type(values).__name__}")
    ignored = {"architectures", "transformers_version", "dtype", "torch_dtype"}
    return {key: value for key, value in values.items() if key not in ignored}


def _pretrained_config(name: str) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name)
    except Exception as error:  # hub, file system and format errors alike
        raise ConfigError(f"pretrained model {name!r} cannot be loaded: {error}") from error
    check_weights(name)
    return config


def check_weights(name: str) -> None:
    """Raise `ConfigError` if a local folder holds no weights."""
    if Path(name).is_dir() and not any(Path(name, weights).is_file() for weights in WEIGHTS):
        raise ConfigError(f"pretrained model {name!r} has no weights: expected {' or '.join(WEIGHTS)} beside its config.json")


def _check_same_vocabulary(pretrained: str, tokenizer: TokenizerInfo) -> None:
    path = Path(pretrained, TOKENIZER_FILE)
    if tokenizer.json and path.is_file() and vocabulary(path.read_text(encoding="utf-8")) != vocabulary(tokenizer.json):
        raise TokenizerError(
            f"the data's tokenizer is not that of the pretrained model {pretrained!r}: their vocabularies differ; "
            f"set data.tokenizer.path to {str(path)!r}"
        )
