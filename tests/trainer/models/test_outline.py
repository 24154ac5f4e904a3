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

from tests.tiny_models import tiny_config
from trainer.common.errors import ConfigError
from trainer.models.causal import load_model, made_ready, model_from
from trainer.models.layers import find_blocks, require_blocks
from trainer.models.outline import Outline, outline_files, outline_new
from trainer.models.tensor_rows import own_tensors, rows_of

RANKS = 3
FAMILIES = [
    "gpt2", "llama", "qwen3", "gemma2", "mixtral", "gpt_neox", "opt", "deepseek_v3", "jamba", "mamba", "mamba2",
]  # fmt: skip


def config_of(family: str, **changes: Any) -> PretrainedConfig:
    special = {"vocab_size": 131, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    made: PretrainedConfig = AutoConfig.for_model(**{**tiny_config(family), **special, **changes})
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
    with torch.device("meta"):
        model = model_from(config_of("zamba"), None, AutoModelForCausalLM)
    with pytest.raises(ConfigError, match="layers of a 'zamba' model share weights"):
        require_blocks(model, "zamba")
