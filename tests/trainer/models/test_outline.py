"""Models of which each rank holds some rows: the same weights as of whole ones, drawn or read, and no more of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tests.support import SMALL_MODEL
from trainer.common.errors import ConfigError
from trainer.models.causal import load_model, made_ready, model_from
from trainer.models.layers import find_blocks, require_blocks
from trainer.models.outline import Outline, outline_files, outline_new
from trainer.models.tensor_rows import own_tensors, rows_of

RANKS = 3
SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": SMALL_MODEL,
    "llama": SMALL,
    "qwen3": {**SMALL, "head_dim": 16},
    "gemma2": {**SMALL, "head_dim": 16},
    "mixtral": {**SMALL, "num_local_experts": 2},
    "gpt_neox": SMALL,
    "opt": {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
    "deepseek_v3": {
        **SMALL,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
    "jamba": {
        **SMALL,
        "num_experts": 2,
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 4,
        "num_heads": 4,
        "head_dim": 16,
        "n_groups": 1,
    },
}


def config_of(family: str, **changes: Any) -> PretrainedConfig:
    values = {name: value for name, value in FAMILIES[family].items() if name != "model_type"}
    made: PretrainedConfig = AutoConfig.for_model(
        family, vocab_size=131, bos_token_id=0, eos_token_id=0, pad_token_id=None, **{**values, **changes}
    )
    return made


def rows(rank: int) -> Callable[[int], tuple[int, int]]:
    return lambda number: rows_of(rank, RANKS, number)


def assert_divided(outlines: list[Outline | None], whole: PreTrainedModel) -> None:
    """All ranks' rows together are the whole model's weights, and its buffers are there."""
    read = []
    for outline in outlines:
        assert outline is not None
        assert all(parameter.is_meta for parameter in outline.model.parameters())
        for (name, expected), (same, found) in zip(whole.named_buffers(), outline.model.named_buffers(), strict=True):
            assert name == same and torch.equal(found, expected)
        read.append(outline.read)
    for name, parameter in whole.named_parameters():
        assert torch.equal(torch.cat([each(name) for each in read]), parameter), name
    for name in own_tensors(whole).keys() - dict(whole.named_parameters()).keys():
        assert all(torch.equal(each(name), own_tensors(whole)[name]) for each in read), name
    assert {name for name, _ in whole.named_parameters()} <= own_tensors(whole).keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_new_model_are_drawn_as_those_of_a_whole_one(family: str) -> None:
    config = config_of(family)
    torch.manual_seed(7)
    whole = made_ready(model_from(config, None, AutoModelForCausalLM))
    state = torch.random.get_rng_state()
    assert_divided([outline_new(config, None, 7, rows(rank)) for rank in range(RANKS)], whole)
    assert torch.equal(torch.random.get_rng_state(), state), "what is drawn next is the same too"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["1GB", "20KB"])
def test_rows_of_a_folder_are_read_from_one_file_or_several(family: str, size: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model_from(config_of(family), None, AutoModelForCausalLM).save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) == 1) == (size == "1GB")
    assert_divided([outline_files(str(tmp_path), None, rows(rank)) for rank in range(RANKS)], load_model(tmp_path))


def test_rows_of_a_model_without_its_head_prefix_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model_from(config_of("gpt2"), None, AutoModelForCausalLM).transformer.save_pretrained(tmp_path)
    assert_divided([outline_files(str(tmp_path), None, rows(rank)) for rank in range(RANKS)], load_model(tmp_path))


def test_a_folder_that_lacks_a_tensor_is_left_to_be_loaded_whole(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model_from(config_of("mixtral"), None, AutoModelForCausalLM).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.1.w1.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert outline_files(str(tmp_path), None, rows(0)) is None


@pytest.mark.parametrize("differ", [False, True])
def test_a_folder_that_is_not_tied_as_it_says_is_left_to_be_loaded_whole(tmp_path: Path, differ: bool) -> None:
    torch.manual_seed(3)
    model = model_from(config_of("llama", tie_word_embeddings=False), None, AutoModelForCausalLM)
    if not differ:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight)
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, "tie_word_embeddings": True}))
    whole = load_model(tmp_path)
    assert (whole.lm_head.weight is whole.model.embed_tokens.weight) == (not differ)
    outlines = [outline_files(str(tmp_path), None, rows(rank)) for rank in range(RANKS)]
    if differ:
        assert outlines[0] is None  # ranks whose rows are the same in both learn of it from it
    else:
        assert_divided(outlines, whole)


def test_a_family_whose_weights_constructors_write_is_left_to_be_built_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    initialise = PreTrainedModel._init_weights

    def but_norms(model: PreTrainedModel, module: nn.Module) -> None:
        if "Norm" not in type(module).__name__:
            initialise(model, module)

    monkeypatch.setattr(PreTrainedModel, "_init_weights", but_norms)
    assert outline_new(config, None, 0, rows(0)) is None


def test_blocks_are_the_members_of_the_outermost_list() -> None:
    with torch.device("meta"):
        model = model_from(config_of("mixtral"), None, AutoModelForCausalLM)
    assert find_blocks(model) == list(model.model.layers)
    with torch.device("meta"):
        mixed = model_from(config_of("jamba"), None, AutoModelForCausalLM)
    assert find_blocks(mixed) == list(mixed.model.layers), "of two classes"
    with torch.device("meta"):
        none = model_from(config_of("gpt2", n_layer=0), None, AutoModelForCausalLM)
    with pytest.raises(ConfigError, match="no repeated blocks to shard"):
        require_blocks(none, "gpt2")


def test_layers_that_share_weights_are_refused() -> None:
    kinds = ["mamba", "hybrid", "mamba", "hybrid"]
    values = {**SMALL, "num_hidden_layers": 4, "n_mamba_heads": 2, "mamba_d_state": 4, "layers_block_type": kinds}
    with torch.device("meta"):
        model = model_from(AutoConfig.for_model("zamba", vocab_size=131, **values), None, AutoModelForCausalLM)
    with pytest.raises(ConfigError, match="layers of a 'zamba' model share weights"):
        require_blocks(model, "zamba")
