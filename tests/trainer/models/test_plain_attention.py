"""A compiled model attends without masks where they would say no more than `is_causal` does."""

from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.depth import once
from tests.tiny_models import tiny_config
from trainer.models.attention_masks import leave_out_masks

IDS = torch.arange(64).reshape(2, 32) % 50


def tiny_model(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**tiny_config(family), "vocab_size": 64})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.eval()


def masks_of_compiled(model: PreTrainedModel) -> list[bool]:
    """Whether each attention of the compiled model is given a mask."""
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(input_ids=IDS, use_cache=False)
    calls = [n for g in graphs for n in g.graph.nodes if n.target is torch.nn.functional.scaled_dot_product_attention]
    return [call.kwargs["attn_mask"] is not None for call in calls]


@pytest.mark.parametrize("family", once("llama", "gpt2", "qwen3", "olmo2"))
def test_plain_causal_attention_is_compiled_without_masks_and_gives_the_same(family: str) -> None:
    model = tiny_model(family)
    with torch.no_grad():
        before = model(input_ids=IDS, use_cache=False).logits
        assert leave_out_masks(model, IDS)
        assert torch.equal(model(input_ids=IDS, use_cache=False).logits, before)
    assert masks_of_compiled(model) == [False, False]


@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_a_window_that_slides_keeps_its_masks(family: str) -> None:
    model = tiny_model(family)
    assert model.config.sliding_window < IDS.shape[1]
    assert not leave_out_masks(model, IDS)
    assert all(masks_of_compiled(model))


def test_an_implementation_that_was_asked_for_is_kept() -> None:
    model = tiny_model("gpt2")
    model.set_attn_implementation("eager")
    assert not leave_out_masks(model, IDS)
    assert model.config._attn_implementation == "eager"


def test_the_saved_settings_do_not_name_it(tmp_path: Any) -> None:
    model = tiny_model("gpt2")
    assert leave_out_masks(model, IDS)
    model.save_pretrained(tmp_path)
    assert "sdpa" not in (tmp_path / "config.json").read_text()
