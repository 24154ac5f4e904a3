"""Configurations of new models: what the job says, over the family's defaults, with the tokenizer's vocabulary.

A configuration as models are published with also holds keys that nothing reads any more, and numbers of the tokens of a
tokenizer that may be another one than the data's.
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
"""What `save_pretrained` writes, and nobody by hand."""

NOT_OF_THE_MODEL = {*MARKS, "dtype", "torch_dtype", "auto_map", "quantization_config", "tokenizer_class"}
"""What is said of files and of code, not of the model: a new one is made in float32 by the code of transformers."""

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

PROBES: tuple[Any, ...] = (12345.0, {"rope_type": "linear", "factor": 12345.0})
"""Values that no family has by default."""


def is_published(values: dict[str, Any]) -> bool:
    """Whether these are the settings of a model as they are published, rather than written for a job."""
    return not MARKS.isdisjoint(values)


def take_published(
    values: dict[str, Any], default: PretrainedConfig, tokenizer: TokenizerInfo, where: str
) -> dict[str, Any]:
    """What counts of a published configuration; what its family does not know is told in a warning and passed over.

    The tokens that begin, end and pad texts are those of the data's tokenizer, so that their published numbers do not
    count, but for a padding token that no text holds. Raises `ConfigError` for an unknown key that looks like a slip.
    """
    kept = {key: value for key, value in values.items() if key not in NOT_OF_THE_MODEL and not key.startswith("_")}
    if _holds_padding(kept.get("pad_token_id"), kept.get("vocab_size"), tokenizer):
        del kept["pad_token_id"]
    for key in TOKEN_IDS[:2]:
        kept.pop(key, None)
    unknown = [key for key, value in kept.items() if not is_known(key, value, default)]
    if slips := {key: close for key in unknown if (close := _meant(key, default, 0.85)) and close not in kept}:
        raise ConfigError(_unknown(next(iter(slips)), default, where))
    if told := [key for key in unknown if kept[key] is not None]:
        log.warning(
            "%s: keys that no %r of transformers reads are passed over: %s", where, default.model_type, ", ".join(told)
        )
    return {key: value for key, value in kept.items() if key not in unknown}


def check_keys(values: dict[str, Any], default: PretrainedConfig, where: str) -> None:
    """Raise `ConfigError` for a key that the family does not know."""
    for key, value in values.items():
        if not is_known(key, value, default):
            raise ConfigError(_unknown(key, default, where))


def is_known(key: str, value: Any, default: PretrainedConfig) -> bool:
    """Whether a family has a setting of this name, or takes it for another one, as it does with names of older
    versions.
    """
    return key in _settings(default) or any(_changes(key, probe, default) for probe in (value, *PROBES))


def check_padding(values: dict[str, Any], tokenizer: TokenizerInfo, where: str) -> None:
    """Raise `ConfigError` if the padding token is one that texts hold: its embedding would stay at zero."""
    pad_id, vocab_size = values["pad_token_id"], values["vocab_size"]
    if _holds_padding(pad_id, vocab_size, tokenizer):
        raise ConfigError(
            f"{where}: pad_token_id {pad_id!r} is not one that no text holds, and a padding token's embedding never "
            f"learns; leave it out, or name an id from {tokenizer.vocab_size} up with a larger vocab_size (now "
            f"{vocab_size!r})"
        )


def _holds_padding(pad_id: Any, vocab_size: Any, tokenizer: TokenizerInfo) -> bool:
    """Whether texts may hold the token that is to pad them, or the model has no room for it."""
    if pad_id is None:
        return False
    added = json.loads(tokenizer.json)["added_tokens"] if tokenizer.json else []
    unused = {token["id"] for token in added if token["special"]} - {tokenizer.eos_id}  # no text becomes one of them
    beyond = isinstance(pad_id, int) and isinstance(vocab_size, int) and tokenizer.vocab_size <= pad_id < vocab_size
    return pad_id not in unused and not beyond


def _changes(key: str, value: Any, default: PretrainedConfig) -> bool:
    """Whether a key sets anything other than an attribute of its own name."""
    try:
        changed = AutoConfig.for_model(default.model_type, **{key: deepcopy(value)}).to_dict()
    except Exception:  # each family refuses in its own way what it takes and cannot use
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
            f"{where}: model_type {kind!r} is not one that transformers knows"
            + (f"; did you mean {close}?" if close else "")
        )
    if masked and kind not in families:
        raise ConfigError(
            f"{where}: transformers has no masked language model of model_type {kind!r}; take one that reads in both "
            "directions, such as bert, roberta or modernbert"
        )
    if kind not in families:
        raise ConfigError(
            f"{where}: transformers has no causal language model of model_type {kind!r}; take one that predicts the "
            "next token, such as gpt2, llama or mamba"
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
