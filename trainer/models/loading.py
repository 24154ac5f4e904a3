"""Configurations and tokenizers of pretrained folders and names, loaded without running anything that they bring."""

from typing import TYPE_CHECKING, Any

from trainer.common.errors import ConfigError, TokenizerError, brief
from trainer.models.pretrained import check_settings

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_config(name: str) -> "PretrainedConfig":
    """The configuration of a model folder or a pretrained name. Raises `ConfigError` if it needs code of its own, or is
    bad.
    """
    from transformers import AutoConfig

    check_settings(name)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # hub, file system and format errors alike
        raise ConfigError(f"model {name!r} cannot be loaded: {brief(error)}") from error
    return config


def load_tokenizer(name: str, plain: bool = False) -> Any:
    """The tokenizer of a model folder or a pretrained name, of the `plain` class if so.

    Raises `ConfigError` if it needs code of its own, `TokenizerError` if there is none, or it cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    check_settings(name)
    try:
        tokenizer = (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the libraries raise bare Exceptions for every kind of bad file
        raise TokenizerError(f"the tokenizer of {name!r} cannot be loaded: {brief(error)}") from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"the tokenizer of {name!r} is none of the `tokenizers` library; convert it to a tokenizer.json"
        )
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # what transformers makes where there is none
        raise TokenizerError(
            f"model {name!r} has no tokenizer, or an empty one; put the files of its tokenizer beside it"
        )
    return tokenizer
