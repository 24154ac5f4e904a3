"""What training takes of a machine's memory."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.config.training import TrainingConfig
from trainer.models.losses import CausalLMLoss
from trainer.preflight.memory import Activations, estimate_memory, guess_activations, measure_activations

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 64,
    "n_positions": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}  # fmt: skip


def settings(**changes: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"max_steps": 1, "warmup_steps": 0, "context": 256, "global_batch": 8, **changes}
    )


def objective_of(values: dict[str, Any]) -> CausalLMLoss:
    config = AutoConfig.for_model(**values, vocab_size=500)
    return CausalLMLoss(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train())


def kept(objective: CausalLMLoss, rows: int, length: int) -> int:
    """Bytes that autograd holds after a forward pass, found by walking its graph."""
    loss = objective(torch.zeros(rows, length, dtype=torch.long))
    parameters = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    seen, todo, found = set(), [loss.grad_fn], {}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        saved += list(getattr(node, "saved_tensors", ()))
        for tensor in saved:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in parameters:
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(found.values())


@pytest.mark.parametrize("values", [GPT2, {**GPT2, "attn_pdrop": 0.0}, LLAMA], ids=["dropout", "none", "llama"])
def test_what_a_model_keeps_is_told_for_other_rows_and_lengths(values: dict[str, Any]) -> None:
    objective = objective_of(values)
    told = measure_activations(objective, 500, settings())
    for rows, length in ((3, 200), (4, 256), (5, 320)):
        expected = told.fixed + rows * (told.per_token * length + told.per_pair * length**2)
        assert expected == pytest.approx(kept(objective, rows, length), rel=0.05)


def test_scores_of_the_attention_are_kept_with_dropout_only() -> None:
    with_dropout, without = (
        measure_activations(objective_of(v), 500, settings()) for v in (GPT2, {**GPT2, "attn_pdrop": 0.0})
    )
    assert with_dropout.per_pair > 4 * 2 * 2 > 0.1 > without.per_pair


def test_a_large_models_activations_are_guessed_as_those_of_small_ones_are() -> None:
    config = AutoConfig.for_model(**LLAMA, vocab_size=500)
    measured, guessed = measure_activations(objective_of(LLAMA), 500, settings()), guess_activations(config, settings())
    assert guessed.per_token == pytest.approx(measured.per_token, rel=0.25)


def test_what_training_takes_is_the_sum_of_its_parts() -> None:
    config, parts = (
        AutoConfig.for_model(**LLAMA, vocab_size=500),
        Activations(fixed=1e6, per_token=1000.0, per_pair=2.0),
    )
    alone = estimate_memory(settings(device="cpu"), 256, config, 1, 10**6, parts, 5 * 10**8, state=8 * 10**6)
    assert alone.device == alone.host == 5e8 + (16 + 12) * 1e6 + 1e6 + 8 * (1000 * 256 + 2 * 256**2)
    accumulating = estimate_memory(
        settings(device="cpu", micro_batch=2), 256, config, 2, 10**6, parts, 5 * 10**8, state=8 * 10**6
    )
    assert accumulating.host == 5e8 + (16 + 12 + 4) * 1e6 + 1e6 + 2 * (1000 * 256 + 2 * 256**2)


def test_of_a_model_with_an_adapter_only_what_is_trained_has_gradients_means_and_copies() -> None:
    config, parts = AutoConfig.for_model(**LLAMA, vocab_size=500), Activations(fixed=0.0, per_token=0.0, per_pair=0.0)
    adapted = estimate_memory(settings(device="cpu"), 256, config, 1, 10**6, parts, 0, state=8 * 10**4, trained=10**4)
    assert adapted.device == adapted.host == (16 + 12) * 1e4 + 4 * (1e6 - 1e4)
