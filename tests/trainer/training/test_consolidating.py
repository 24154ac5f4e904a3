"""Models in parts, written as `save_pretrained` writes them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.tiny_models import tiny_config
from trainer.models.causal import load_model, model_from
from trainer.models.tensor_files import MODEL, find_parts, part_name
from trainer.models.tensor_rows import RowRange, Tensors, own_tensors, write_part
from trainer.training.part_saver import consolidate, publish_parts, saved_form

FAMILIES = [
    "gpt2", "llama", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "jamba", "granitemoe", "ernie4_5_moe", "olmoe",
    "lfm2_moe", "phimoe", "minimax", "nemotron_h", "dots1", "gemma3n_text", "zamba2",
]  # fmt: skip
"""Families whose files have the model's own names, and those in whose files experts lie each by itself, or others
differ.
"""


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    values = tiny_config(request.param)
    torch.manual_seed(0)
    config = AutoConfig.for_model(**values, vocab_size=values.pop("vocab_size", 320), pad_token_id=None)
    return model_from(config, None, AutoModelForCausalLM)


def checkpoint_of(model: PreTrainedModel, folder: Path) -> Path:
    """A folder with the one part of a model."""
    folder.mkdir()
    tensors = {name: tensor.detach().clone() for name, tensor in own_tensors(model).items()}
    row_ranges = {name: RowRange(0, tuple(tensor.shape)) for name, tensor in tensors.items() if tensor.dim()}
    write_part(folder / part_name(MODEL, 0, 1, "0" * 64), tensors, row_ranges)
    model.config.save_pretrained(folder)
    return folder


def test_what_is_published_of_parts_is_what_save_pretrained_writes(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "whole")
    checkpoint, folder = checkpoint_of(model, tmp_path / "parts"), tmp_path / "final"
    folder.mkdir()
    publish_parts(model, checkpoint, folder)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("model", ["llama", "mixtral"], indirect=True)
def test_several_files_load_as_one_and_hold_each_layer_together(model: PreTrainedModel, tmp_path: Path) -> None:
    checkpoint, folder = checkpoint_of(model, tmp_path / "parts"), tmp_path / "final"
    folder.mkdir()
    consolidate(Tensors(find_parts(checkpoint, MODEL)), folder, saved_form(model), file_bytes=50_000)
    model.config.save_pretrained(folder)
    files = sorted(folder.glob("model-*.safetensors"))
    assert len(files) > 2
    layers = [{name.split(".")[2] for name in load_file(file) if ".layers." in name} for file in files]
    assert sum(map(len, layers)) == model.config.num_hidden_layers
    loaded = load_model(folder).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
