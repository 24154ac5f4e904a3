"""Speed figures against their definitions."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from trainer.training.throughput import Meter, flops_per_token, measured_flops, peak_flops

CPU = torch.device("cpu")


def test_arithmetic_of_a_tied_model_is_six_a_weight_that_multiplies_and_that_of_attention() -> None:
    layers, width, vocabulary, positions, context = 2, 32, 100, 64, 16
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=2, n_positions=positions, vocab_size=vocabulary)
    model = GPT2LMHeadModel(config)
    multiplied = sum(parameter.numel() for parameter in model.parameters()) - positions * width
    expected = 6 * multiplied + 12 * layers * width * context
    assert flops_per_token(model, config, context) == expected
    frozen = model.transformer.h[0].mlp.c_fc.weight
    frozen.requires_grad_(False)
    assert flops_per_token(model, config, context) == expected - 2 * frozen.numel(), "it has no gradient of its own"


def test_an_untied_models_input_embeddings_only_look_up() -> None:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=100,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    multiplied = sum(parameter.numel() for parameter in model.parameters()) - 100 * 32
    assert flops_per_token(model, config, 16) == 6 * multiplied + 12 * 2 * 32 * 16


def test_of_a_models_experts_those_that_its_router_chooses_count() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    eager: dict[str, Any] = {"attn_implementation": "eager", "experts_implementation": "eager"}
    config = MixtralConfig(**sizes, **eager)
    model, tokens = MixtralForCausalLM(config), torch.arange(64)[None]
    counted: Any = FlopCounterMode(display=False)
    with counted:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    assert 64 * flops_per_token(model, config, 64) == pytest.approx(counted.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_machine_without_a_data_sheet_is_measured(precision: str) -> None:
    assert peak_flops(CPU, precision) > 1e8
    assert measured_flops(CPU, torch.float32, seconds=0.0) > 0, "at least one product is timed"


def test_a_meter_gathers_losses_and_relates_its_figures() -> None:
    meter = Meter(CPU, flops_per_token=4e3, peak=1e9)
    for loss, waited in ((2.0, 0.25), (4.0, 0.75)):
        meter.add(torch.tensor(loss), 1000, waited)
    assert (float(meter.loss), meter.attempts) == (6.0, 2)
    figures = meter.read()
    assert figures["tokens_per_second"] == pytest.approx(1000 / figures["step_seconds"])
    assert figures["mfu"] == pytest.approx(4e6 / figures["step_seconds"] / 1e9)
    assert figures["data_wait_seconds"] == 0.5
    meter.reset()
    assert (float(meter.loss), meter.attempts) == (0.0, 0)


def test_time_that_a_meter_is_told_to_leave_out_is_left_out() -> None:
    meter = Meter(CPU, flops_per_token=1.0, peak=1.0)
    meter.add(torch.tensor(1.0), 1, 0.0)
    before = meter.read()["step_seconds"]
    meter.pause(1000.0)
    assert meter.read()["step_seconds"] < before - 900.0
