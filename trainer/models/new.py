"""Configurations of new models: what the job says, over the family's defaults, with the tokenizer's vocabulary."""

import difflib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_FAMILIES
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED_FAMILIES

from trainer.common.errors import ConfigError, brief, reason_of
from trainer.config.files import parse_json, parse_yaml
from trainer.config.models import ModelConfig
from trainer.config.problems import shown
from trainer.corpus.tokenizer import TokenizerInfo
from trainer.models.published_configs import check_keys, check_padding, is_published, take_published


def new_config(options: ModelConfig, tokenizer: TokenizerInfo, masked: bool = False) -> PretrainedConfig:
    """The configuration of a new model, without a padding token unless the job names one that no text holds.

    A family's own padding token is a number that another tokenizer gave it: here it would be an ordinary token, whose
    embedding never learns. Raises `ConfigError` for unknown keys and impossible values.
    """
    # A copy of all of it: libraries write into what they are given, and the job's own settings name its run.
    values = deepcopy(_read_values(options.config) if isinstance(options.config, str) else options.config or {})
    where = f"model config {options.config}" if isinstance(options.config, str) else "model.config"
    kind = _check_family(values.pop("model_type", None), where, masked)
    default = _configured(where, lambda: AutoConfig.for_model(kind))
    _check_single(default, where)
    if is_published(values):
        values = take_published(values, default, tokenizer, where)
    else:
        check_keys(values, default, where)
    multiple, used = options.pad_vocab_to, tokenizer.vocab_size
    values.setdefault("vocab_size", -(-used // multiple) * multiple)
    values = {"bos_token_id": tokenizer.eos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": None, **values}
    check_padding(values, tokenizer, where)
    return _configured(where, lambda: AutoConfig.for_model(kind, **values), padding_hint(kind, values["pad_token_id"]))


def padding_hint(kind: str, pad_id: int | None) -> str:
    """What to do if it is for lack of a padding token that a family fails."""
    if pad_id is not None or getattr(CONFIG_MAPPING[kind], "pad_token_id", None) is None:
        return ""
    return "; if it is a padding token that it misses, set model.config.pad_token_id to the first id that no text holds"


def _check_family(kind: Any, where: str, masked: bool) -> str:
    families = MASKED_FAMILIES if masked else CAUSAL_FAMILIES
    if kind not in CONFIG_MAPPING:
        close = difflib.get_close_matches(str(kind), list(families), 3)
        raise ConfigError(
            f"{where}: model_type {kind!r} is not one that transformers knows" + (f"; did you mean {close}?" if close else "")
        )
    if masked and kind not in families:
        raise ConfigError(
            f"{where}: transformers has no masked language model of model_type {kind!r}; take one that reads in both "
            "directions, such as bert, roberta or modernbert"
        )
    if kind not in families:
        raise ConfigError(
            f"{where}: transformers has no causal language model of model_type {kind!r}; take one that predicts the next "
            "token, such as gpt2, llama or mamba"
        )
    return str(kind)


def _check_single(default: PretrainedConfig, where: str) -> None:
    """Raise `ConfigError` for a model that is made of several, of which text is one."""
    try:
        text = default.get_text_config()
    except ValueError:  # there are several
        text = None
    if text is default and not hasattr(default, "vision_config"):
        return
    of_text = text.model_type if text not in (None, default) and text.model_type in CAUSAL_FAMILIES else None
    raise ConfigError(
        f"{where}: {default.model_type!r} is made of models of several kinds, not of text alone; "
        + (f"take {of_text!r}, its language model" if of_text else "take a family of language models, such as llama")
    )


def _configured(where: str, make: Callable[[], PretrainedConfig], hint: str = "") -> PretrainedConfig:
    try:
        return make()
    except Exception as error:  # each architecture validates with errors of its own
        raise ConfigError(f"{where}: {brief(error)}{hint if 'None' in str(error) else ''}") from error


def _read_values(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = parse_json(text) if path.endswith(".json") else parse_yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model config {path} cannot be read: {reason_of(error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"model config {path}: expected keys with values, found {shown(values)}")
    return values
