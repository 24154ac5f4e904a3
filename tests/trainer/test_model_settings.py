"""Model settings that cannot work: refused by name, before anything is built."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import SMALL_MODEL
from trainer.config import ModelConfig
from trainer.errors import ConfigError, PipelineError, TokenizerError
from trainer.models import build_model, count_parameters, resolve_config
from trainer.tokenizer import TokenizerInfo

VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=0, max_id=299)


def refused(options: ModelConfig, context: int = 32, kind: type[PipelineError] = ConfigError) -> str:
    """The message with which a model is refused."""
    with pytest.raises(kind) as caught:
        count_parameters(resolve_config(options, VOCABULARY, context))
    return str(caught.value)


def new(**changes: Any) -> ModelConfig:
    return ModelConfig(config={**SMALL_MODEL, **changes})


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant() -> None:
    assert refused(new(n_layers=2)) == "model.config: unknown key 'n_layers' for 'gpt2'; did you mean 'n_layer'?"


def test_a_misspelt_key_in_a_file_is_refused_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**SMALL_MODEL, "n_heads": 2}))
    assert refused(ModelConfig(config=str(path))).startswith(f"model config {path}: unknown key 'n_heads'")


def test_a_common_name_of_a_setting_is_known_under_every_family() -> None:
    config = resolve_config(ModelConfig(config={"model_type": "gpt2", "hidden_size": 64}), VOCABULARY, 32)
    assert config.n_embd == 64


@pytest.mark.parametrize(
    ("kind", "expected"), [("gpt3", "did you mean"), (None, "model_type None"), ("nothing-like-it", "is not one that")]
)
def test_an_unknown_family_is_refused(kind: str | None, expected: str) -> None:
    message = refused(ModelConfig(config={"model_type": kind}))
    assert expected in message
    assert "transformers knows" in message


def test_a_window_longer_than_the_models_positions_is_refused() -> None:
    assert refused(new(), context=33) == "training.context is 33, but the model has 32 positions"


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    message = refused(new(n_head=3))
    assert "gpt2" in message
    assert "divisible" in message


def test_an_attention_that_the_family_does_not_have_is_refused_before_the_model_is_built() -> None:
    options = ModelConfig(config={"model_type": "gemma2"}, attention="sdpa")
    with pytest.raises(ConfigError, match=r"gemma2.*eager"):
        count_parameters(resolve_config(options, VOCABULARY, 32), options.attention)
    assert count_parameters(resolve_config(options, VOCABULARY, 32), "eager") > 0


@pytest.mark.parametrize("changes", [{"n_layer": "two"}, {"n_embd": -32}, {"n_embd": 0}])
def test_impossible_sizes_are_refused(changes: dict[str, Any]) -> None:
    assert "gpt2" in refused(new(**changes)) or "model.config" in refused(new(**changes))


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    message = refused(new(vocab_size=299), kind=TokenizerError)
    assert "largest id is 299" in message
    assert "299 embeddings" in message


@pytest.mark.parametrize("content", ["{", "[1, 2]", "\x00"])
def test_a_configuration_file_that_is_none_is_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    assert str(path) in refused(ModelConfig(config=str(path)))


def test_a_missing_configuration_file_is_refused_by_name(tmp_path: Path) -> None:
    assert str(tmp_path / "none.yaml") in refused(ModelConfig(config=str(tmp_path / "none.yaml")))


def test_a_missing_pretrained_folder_is_refused_by_name(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(ModelConfig(pretrained=str(tmp_path / "none")))


def test_a_pretrained_folder_without_weights_is_refused_by_name(tmp_path: Path) -> None:
    options = ModelConfig(config=dict(SMALL_MODEL))
    build_model(options, resolve_config(options, VOCABULARY, 32), 0).config.save_pretrained(tmp_path)
    message = refused(ModelConfig(pretrained=str(tmp_path)))
    assert str(tmp_path) in message
