"""Configurations of new models: the job's settings over the family's defaults, with the tokenizer's vocabulary.

A published model's configuration also holds obsolete keys, and token ids of a tokenizer that may not be the data's.
"""

import difflib
import json
import logging
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
from trainer.models.tokenizer import TokenizerInfo

log = logging.getLogger(__name__)


MARKS = {"architectures", "transformers_version"}
"""Keys that only `save_pretrained` writes."""

TYPES = {"dtype", "torch_dtype"}
"""Names of the type of a stored model's weights."""

NOT_OF_THE_MODEL = {*MARKS, *TYPES, "auto_map", "quantization_config", "tokenizer_class"}
"""Keys about files and code, which do not apply to a new model: it is built in float32 by code of transformers."""

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

PROBES: tuple[Any, ...] = (12345.0, {"rope_type": "linear", "factor": 12345.0})
"""Values that are no family's defaults."""


def is_published(values: dict[str, Any]) -> bool:
    """Whether these settings come from a published model, rather than being written for a job."""
    return not MARKS.isdisjoint(values)


def take_published(
    values: dict[str, Any], default: PretrainedConfig, tokenizer: TokenizerInfo, where: str
) -> dict[str, Any]:
    """The applicable keys of a published configuration; keys unknown to its family are ignored with a warning.

    Published ids of begin, end and padding tokens are ignored, as the data's tokenizer has its own, except a padding
    token that no text contains. Raises `ConfigError` for an unknown key that looks like a typing error.
    """
    kept = {key: value for key, value in values.items() if key not in NOT_OF_THE_MODEL and not key.startswith("_")}
    if _holds_padding(kept.get("pad_token_id"), kept.get("vocab_size"), tokenizer):
        del kept["pad_token_id"]
    for key in TOKEN_IDS[:2]:
        kept.pop(key, None)
    unknown = [key for key, value in kept.items() if not is_known(key, value, default)]
    if slips := {key: close for key in unknown if (close := _meant(key, default, 0.85)) and close not in kept}:
        raise ConfigError(_unknown(next(iter(slips)), default, where))
    if ignored := [key for key in unknown if kept[key] is not None]:
        log.warning(
            "%s: ignored keys that a %r model of transformers does not use: %s",
            where,
            default.model_type,
            ", ".join(ignored),
        )
    return {key: value for key, value in kept.items() if key not in unknown}


def check_keys(values: dict[str, Any], default: PretrainedConfig, where: str) -> None:
    """Raise `ConfigError` for a key unknown to the family, and for the type of weights, which are always float32."""
    if typed := sorted(TYPES & values.keys()):
        raise ConfigError(
            f"{where}: {typed[0]} has no effect: the weights of a new model are float32; remove it, and set "
            "training.precision for the arithmetic of training"
        )
    for key, value in values.items():
        if not is_known(key, value, default):
            raise ConfigError(_unknown(key, default, where))


def is_known(key: str, value: Any, default: PretrainedConfig) -> bool:
    """Whether a family has a setting of this name, or accepts it as an older name of another setting."""
    return key in _settings(default) or any(_changes(key, probe, default) for probe in (value, *PROBES))


def check_padding(values: dict[str, Any], tokenizer: TokenizerInfo, where: str) -> None:
    """Raise `ConfigError` if texts may contain the padding token: its embedding would stay at zero."""
    pad_id, vocab_size = values["pad_token_id"], values["vocab_size"]
    if _holds_padding(pad_id, vocab_size, tokenizer):
        raise ConfigError(
            f"{where}: texts may contain pad_token_id {pad_id!r}, but a padding token's embedding is never trained; "
            f"remove it, or set an id from {tokenizer.vocab_size} up with a larger vocab_size (now {vocab_size!r})"
        )


def _holds_padding(pad_id: Any, vocab_size: Any, tokenizer: TokenizerInfo) -> bool:
    """Whether texts may contain the padding token, or its id exceeds the model's vocabulary."""
    if pad_id is None:
        return False
    added = json.loads(tokenizer.json)["added_tokens"] if tokenizer.json else []
    unused = {token["id"] for token in added if token["special"]} - {tokenizer.eos_id}  # never encoded from text
    beyond = isinstance(pad_id, int) and isinstance(vocab_size, int) and tokenizer.vocab_size <= pad_id < vocab_size
    return pad_id not in unused and not beyond


def _changes(key: str, value: Any, default: PretrainedConfig) -> bool:
    """Whether a key sets anything besides an attribute of its own name."""
    try:
        changed = AutoConfig.for_model(default.model_type, **{key: deepcopy(value)}).to_dict()
    except Exception:  # families raise various errors for unusable values
        return False
    return {**changed, key: None} != {**default.to_dict(), key: None}


def _settings(default: PretrainedConfig) -> set[str]:
    return {*default.to_dict(), *default.attribute_map}


def _meant(key: str, default: PretrainedConfig, cutoff: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(key, _settings(default), 1, cutoff)), None)


def _unknown(key: str, default: PretrainedConfig, where: str) -> str:
    close = _meant(key, default)
    return f"{where}: unknown key {key!r} for {default.model_type!r}" + (f"; did you mean {close!r}?" if close else "")


def new_config(options: ModelConfig, tokenizer: TokenizerInfo, masked: bool = False) -> PretrainedConfig:
    """The configuration of a new model, without a padding token unless the job sets one that no text contains.

    A family's default padding id comes from another tokenizer; here it would be an ordinary token whose embedding is
    never trained. Raises `ConfigError` for unknown keys and invalid values.
    """
    # A deep copy: libraries modify their arguments, and the job's settings determine the run's fingerprint.
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
    """Advice if a family may fail because the padding token is missing; else empty."""
    if pad_id is not None or getattr(CONFIG_MAPPING[kind], "pad_token_id", None) is None:
        return ""
    return "; if it needs a padding token, set model.config.pad_token_id to the first id that no text contains"


def _check_family(kind: Any, where: str, masked: bool) -> str:
    families = MASKED_FAMILIES if masked else CAUSAL_FAMILIES
    if kind not in CONFIG_MAPPING:
        close = difflib.get_close_matches(str(kind), list(families), 3)
        raise ConfigError(
            f"{where}: transformers does not know the model_type {kind!r}"
            + (f"; did you mean {' or '.join(map(repr, close))}?" if close else "")
        )
    if masked and kind not in families:
        raise ConfigError(
            f"{where}: transformers has no masked language model of model_type {kind!r}; use a bidirectional one, such "
            "as bert, roberta or modernbert"
        )
    if kind not in families:
        raise ConfigError(
            f"{where}: transformers has no causal language model of model_type {kind!r}; use one that predicts the "
            "next token, such as gpt2, llama or mamba"
        )
    return str(kind)


def _check_single(default: PretrainedConfig, where: str) -> None:
    """Raise `ConfigError` for a model that consists of several, such as a text and a vision model."""
    try:
        text = default.get_text_config()
    except ValueError:  # there are several
        text = None
    if text is default and not hasattr(default, "vision_config"):
        return
    of_text = text.model_type if text not in (None, default) and text.model_type in CAUSAL_FAMILIES else None
    raise ConfigError(
        f"{where}: {default.model_type!r} consists of models of several kinds, not only of text; "
        + (f"use {of_text!r}, its language model" if of_text else "use a family of language models, such as llama")
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
