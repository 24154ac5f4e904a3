"""Model settings that cannot work: refused by name, before anything is built."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from tests.support import SMALL_MODEL
from trainer.common.errors import ConfigError, PipelineError, TokenizerError
from trainer.config.models import ModelConfig
from trainer.models.adapters import count_trained
from trainer.models.causal import build_model, resolve_config, sketch_model
from trainer.models.tokenizer import TokenizerInfo

VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=0, max_id=299)


def refused(options: ModelConfig, context: int = 32, kind: type[PipelineError] = ConfigError) -> str:
    """The message with which a model is refused."""
    with pytest.raises(kind) as caught:
        sketch_model(resolve_config(options, VOCABULARY, context))
    return str(caught.value)


def new(**changes: Any) -> ModelConfig:
    return ModelConfig(config={**SMALL_MODEL, **changes})


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant() -> None:
    assert refused(new(n_layers=2)) == "model.config: unknown key 'n_layers' for 'gpt2'; did you mean 'n_layer'?"


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_type_of_weights_that_a_new_model_would_not_have_is_refused(key: str) -> None:
    expected = f"model.config: {key} has no effect: the weights of a new model are float32; remove it"
    assert refused(new(**{key: "bfloat16"})).startswith(expected)


def test_a_misspelt_key_in_a_file_is_refused_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**SMALL_MODEL, "n_heads": 2}))
    assert refused(ModelConfig(config=str(path))).startswith(f"model config {path}: unknown key 'n_heads'")


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("model.json", '{"model_type": "gpt2",\n\t"n_layer": 1, "a\\"b{": {"n_layer": 3},\n\t"n_layer": 2}', "2 and 3"),
        ("model.json", '{"task_specific_params": {"n_layer": [{"n_layer": 1,\n"n_layer" : 2}]}}', "1 and 2"),
        ("model.yaml", "model_type: gpt2\nn_layer: 1\nn_layer: 2\n", "2 and 3"),
    ],
)
def test_a_key_that_stands_twice_in_a_file_is_refused_with_both_lines(
    name: str, content: str, lines: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert f"duplicate key 'n_layer' in lines {lines}" in refused(ModelConfig(config=str(path)))


def test_a_common_name_of_a_setting_is_known_under_every_family() -> None:
    config = resolve_config(ModelConfig(config={"model_type": "gpt2", "hidden_size": 64}), VOCABULARY, 32)
    assert config.n_embd == 64


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("gpt3", "did you mean 'gpt"), (None, "model_type None"), ("nothing-like-it", "does not know the model_type")],
)
def test_an_unknown_family_is_refused(kind: str | None, expected: str) -> None:
    message = refused(ModelConfig(config={"model_type": kind}))
    assert expected in message
    assert "transformers does not know" in message


def test_a_window_longer_than_the_models_positions_is_refused() -> None:
    assert refused(new(), context=33) == "training.context is 33, but the model has 32 positions"


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    message = refused(new(n_head=3))
    assert "gpt2" in message
    assert "divisible" in message


def test_an_attention_that_the_family_does_not_have_is_refused_before_the_model_is_built() -> None:
    options = ModelConfig(config={"model_type": "gemma2"}, attention="sdpa")
    with pytest.raises(ConfigError, match=r"gemma2.*eager"):
        sketch_model(resolve_config(options, VOCABULARY, 32), options.attention)
    assert count_trained(sketch_model(resolve_config(options, VOCABULARY, 32), "eager")).parameters > 0


@pytest.mark.parametrize("changes", [{"n_layer": "two"}, {"n_embd": -32}, {"n_embd": 0}])
def test_impossible_sizes_are_refused(changes: dict[str, Any]) -> None:
    assert "gpt2" in refused(new(**changes)) or "model.config" in refused(new(**changes))


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    message = refused(new(vocab_size=299), kind=TokenizerError)
    assert "largest id is 299" in message
    assert "299 embeddings" in message


@pytest.mark.parametrize("pad_id", [0, 7, 299, 320, -1, True])
def test_a_padding_token_that_texts_hold_or_that_the_model_lacks_is_refused(pad_id: int) -> None:
    message = refused(new(pad_token_id=pad_id))
    assert f"pad_token_id {pad_id!r}" in message
    assert "never trained" in message
    assert "from 300 up" in message


def test_a_padding_token_may_be_a_special_token_of_the_tokenizer_but_not_its_end() -> None:
    tokenizer = Tokenizer(models.BPE({f"t{number}": number for number in range(300)}, []))
    tokenizer.add_special_tokens(["t1", "t5"])
    vocabulary = TokenizerInfo(json=tokenizer.to_str(), sha256="", eos_id=1, max_id=299)
    assert resolve_config(new(pad_token_id=5), vocabulary, 32).pad_token_id == 5
    for ordinary in (1, 6):
        with pytest.raises(ConfigError, match=f"texts may contain pad_token_id {ordinary}"):
            resolve_config(new(pad_token_id=ordinary), vocabulary, 32)


def test_a_family_that_cannot_do_without_a_padding_token_is_told_so() -> None:
    message = refused(ModelConfig(config={"model_type": "modernbert-decoder"}))
    assert "pad_token_id" in message
    assert "set model.config.pad_token_id to the first id that no text contains" in message


@pytest.mark.parametrize("family", ["t5", "vit"])
def test_a_family_without_a_causal_language_model_is_refused(family: str) -> None:
    assert "no causal language model of model_type" in refused(ModelConfig(config={"model_type": family}))


@pytest.mark.parametrize(
    ("family", "instead"), [("gemma3", "use 'gemma3_text'"), ("git", "llama"), ("musicgen", "llama")]
)
def test_a_model_of_more_than_text_is_refused_with_its_language_model(family: str, instead: str) -> None:
    message = refused(ModelConfig(config={"model_type": family}))
    assert f"{family!r} consists of models of several kinds" in message
    assert instead in message


def test_a_family_whose_own_defaults_do_not_fit_each_other_is_refused() -> None:
    assert "must be 0" in refused(ModelConfig(config={"model_type": "gemma4_assistant"}))


def test_a_model_that_cannot_be_built_is_refused_also_where_it_is_built_for_real() -> None:
    options = new(n_head=3)
    with pytest.raises(ConfigError, match="cannot be built from this configuration"):
        build_model(options, resolve_config(options, VOCABULARY, 32), 0)


@pytest.mark.parametrize("content", ["{", "\x00"])
def test_a_configuration_file_that_is_none_is_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    assert str(path) in refused(ModelConfig(config=str(path)))


def test_a_missing_pretrained_folder_is_refused_by_name(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(ModelConfig(pretrained=str(tmp_path / "none")))


def test_a_pretrained_folder_without_weights_is_refused_by_name(tmp_path: Path) -> None:
    options = ModelConfig(config=dict(SMALL_MODEL))
    build_model(options, resolve_config(options, VOCABULARY, 32), 0).config.save_pretrained(tmp_path)
    message = refused(ModelConfig(pretrained=str(tmp_path)))
    assert str(tmp_path) in message
