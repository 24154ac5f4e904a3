"""Configurations as models are published with: what they say counts, under the names of older versions of transformers
too.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from trainer.common.errors import ConfigError
from trainer.config.models import ModelConfig
from trainer.models.causal import build_model, resolve_config
from trainer.models.tokenizer import TokenizerInfo
from trainer.models.trial import check_causal

VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=7, max_id=299)

OF_FILES = {"torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True, "initializer_range": 0.02}
WIDTHS = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "max_position_embeddings": 64, "vocab_size": 320,
}  # fmt: skip
LLAMA3 = {
    "factor": 4.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}  # fmt: skip

PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2", "n_ctx": 64, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64,
        "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 320,
    },
    "llama": {
        **OF_FILES, **WIDTHS, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 128000,
        "eos_token_id": [128001, 128008], "pretraining_tp": 1, "rope_scaling": LLAMA3, "rope_theta": 500000.0,
    },
    "qwen2": {
        **OF_FILES, **WIDTHS, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "bos_token_id": 151643,
        "eos_token_id": 151643, "max_window_layers": 24, "rope_theta": 1000000.0, "sliding_window": 32768,
        "use_mrope": False, "use_sliding_window": False,
    },
    "mistral": {
        **OF_FILES, **WIDTHS, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "bos_token_id": 1,
        "eos_token_id": 2, "rope_theta": 20000.0, "sliding_window": 4096,
    },
    "pythia": {
        **OF_FILES, "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "gelu", "hidden_size": 32, "intermediate_size": 64, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "rotary_emb_base": 20000,
        "rotary_pct": 0.5, "use_parallel_residual": True, "vocab_size": 320,
    },
    "gemma2": {
        **OF_FILES, **WIDTHS, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "bos_token_id": 2,
        "cache_implementation": "hybrid", "eos_token_id": 1, "head_dim": 16, "pad_token_id": 0,
        "query_pre_attn_scalar": 16,
        "rope_theta": 20000.0, "sliding_window": 64, "hidden_activation": "gelu_pytorch_tanh",
    },
}  # fmt: skip
"""The keys are those of the published files, the sizes small."""

OF_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def written(values: dict[str, Any], path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_means_what_transformers_takes_it_for(name: str, tmp_path: Path) -> None:
    options = ModelConfig(config=written(PUBLISHED[name], tmp_path / name / "config.json"))
    config = resolve_config(options, VOCABULARY, 32)
    theirs, ours = AutoConfig.from_pretrained(tmp_path / name).to_dict(), config.to_dict()
    read = {key for key in theirs if key in ours} - {*OF_TOKENS, "architectures", "dtype", "_name_or_path"}
    assert {key: ours[key] for key in read} == {key: theirs[key] for key in read}
    assert [getattr(config, key) for key in OF_TOKENS] == [7, 7, None], "those of the data's tokenizer"
    check_causal(build_model(options, config, 0), 32)


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_may_stand_in_the_job_itself_which_stays_as_it_was_written(name: str, tmp_path: Path) -> None:
    values = json.loads(json.dumps(PUBLISHED[name]))
    within = resolve_config(ModelConfig(config=values), VOCABULARY, 32)
    beside = resolve_config(ModelConfig(config=written(PUBLISHED[name], tmp_path / "model.json")), VOCABULARY, 32)
    assert within.to_dict() == beside.to_dict()
    assert values == PUBLISHED[name]


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"model_type": "llama", "rope_theta": 500000.0}, "rope_theta", 500000.0),
        ({"model_type": "llama", "rope_scaling": LLAMA3, "max_position_embeddings": 64}, "rope_type", "llama3"),
        ({"model_type": "gpt_neox", "rotary_emb_base": 500}, "rope_theta", 500),
        ({"model_type": "gpt_neox", "rotary_pct": 1.0}, "partial_rotary_factor", 1.0),
    ],
)
def test_an_older_name_of_a_setting_counts_by_itself_too(settings: dict[str, Any], key: str, value: Any) -> None:
    config = resolve_config(ModelConfig(config=settings), VOCABULARY, 32)
    assert config.rope_parameters[key] == value


def test_what_no_model_reads_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        resolve_config(ModelConfig(config=PUBLISHED["gpt2"]), VOCABULARY, 32)
    assert [record.getMessage() for record in caplog.records] == [
        "model.config: ignored keys that a 'gpt2' model of transformers does not use: n_ctx, task_specific_params"
    ]


def test_a_slip_in_an_edited_file_is_refused() -> None:
    values = {key: value for key, value in PUBLISHED["gpt2"].items() if key != "n_layer"}
    with pytest.raises(ConfigError, match="unknown key 'n_layers' for 'gpt2'; did you mean 'n_layer'"):
        resolve_config(ModelConfig(config={**values, "n_layers": 1}), VOCABULARY, 32)


@pytest.mark.parametrize("key", ["n_ctx", "rope_theta", "rope_scaling"])
def test_a_key_that_would_do_nothing_is_refused_where_it_was_written_for_the_job(key: str) -> None:
    settings = {"model_type": "gpt2", "n_layer": 1, key: 64}
    with pytest.raises(ConfigError, match=f"unknown key '{key}' for 'gpt2'"):
        resolve_config(ModelConfig(config=settings), VOCABULARY, 32)
