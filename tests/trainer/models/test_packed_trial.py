"""The trial of texts that share a window: what it takes and refuses does not depend on the type that a model computes
in.
"""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.families import Case, make
from tests.support import cpu_runtime
from trainer.common.errors import ConfigError
from trainer.config.training import OptimizationConfig
from trainer.models.trial import check_packed
from trainer.training.sharding import COMPUTED_IN, shard_model, sharding_group

APART = [
    "gpt2", "llama", "olmo2", "gemma2", "gemma3_text", "cohere", "phi3", "glm", "smollm3", "mixtral", "deepseek_v3",
    "qwen3_moe", "llama4_text", "gpt_neox", "granitemoe",
]  # fmt: skip
LEAKING = ["opt", "gpt_oss", "xglm", "biogpt", "falcon", "falcon_h1", "jamba"]
CONTEXT = 24


def spread(family: str) -> PreTrainedModel:
    """A model whose weights are as large as those of trained ones: rounding of half precision shows in its logits."""
    model = make(Case(family, {}))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def try_divided(model: PreTrainedModel, precision: str) -> None:
    """Try a model that is divided as for training, here among one rank."""
    division, runtime = OptimizationConfig(max_steps=1, sharding="fsdp"), cpu_runtime()
    dtype = COMPUTED_IN[precision]
    with sharding_group(division, runtime), torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        shard_model(model, division, runtime, dtype)
        check_packed(model, CONTEXT, "documents", "turn it off")


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("family", APART)
def test_a_model_that_keeps_texts_apart_passes_in_any_type(family: str, precision: str) -> None:
    try_divided(spread(family), precision)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("family", LEAKING)
def test_a_model_that_sees_the_text_before_is_refused_in_any_type(family: str, precision: str) -> None:
    with pytest.raises(ConfigError, match="documents would see each other; turn it off"):
        try_divided(spread(family), precision)


def seeing(share: float) -> PreTrainedModel:
    """A model of which one layer mixes in what stands half a window before."""
    model = spread("llama")

    def mix(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + share * output.roll(CONTEXT // 2, dims=1)

    model.model.layers[0].register_forward_hook(mix)
    return model


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_a_leak_that_is_smaller_than_rounding_is_found(precision: str) -> None:
    with pytest.raises(ConfigError, match="documents would see each other"):
        try_divided(seeing(1e-3), precision)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_positions_that_go_on_from_text_to_text_are_found_without_a_leak(precision: str) -> None:
    model = spread("gpt2")
    places = torch.arange(CONTEXT)[None]
    model.transformer.wpe.register_forward_pre_hook(lambda module, inputs: (places,))
    with pytest.raises(ConfigError, match="documents would see each other"):
        try_divided(model, precision)


@pytest.mark.parametrize("family", ["gpt2", "ctrl"])
def test_the_trial_leaves_a_model_as_it_was(family: str) -> None:
    model = spread(family).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_packed(model, CONTEXT, "documents", "turn it off")
    assert model.training and not model.get_input_embeddings()._forward_hooks
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
