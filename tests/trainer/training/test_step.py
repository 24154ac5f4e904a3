"""One optimizer step against plain computations of the same."""

import copy
import math
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, get_scheduler

from tests.support import NO_DROPOUT
from tests.tiny_models import new_model, tiny_config
from trainer.config.training import TrainingConfig
from trainer.data.dataset import Batch
from trainer.models.causal import sketch_model
from trainer.models.losses import CausalLMLoss
from trainer.training.runtime import Runtime
from trainer.training.schedules import make_schedule
from trainer.training.step import Outcome, make_optimizer, state_bytes, train_step

STEPS = 12


def settings(**changes: Any) -> TrainingConfig:
    return TrainingConfig(**{"max_steps": STEPS, "context": 16, "global_batch": 4, "learning_rate": 1e-2, **changes})


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=100, **NO_DROPOUT))


@pytest.fixture
def windows_BT() -> torch.Tensor:
    return torch.randint(0, 100, (4, 16), generator=torch.Generator().manual_seed(1))


def reference_loss(model: PreTrainedModel, windows_BT: torch.Tensor) -> torch.Tensor:
    """The mean loss as transformers itself computes it from labels."""
    loss: torch.Tensor = model(input_ids=windows_BT, labels=windows_BT).loss
    return loss


def reference_gradient(model: PreTrainedModel, windows_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model)
    reference_loss(model, windows_BT).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def take_step(
    model: PreTrainedModel, windows_BT: torch.Tensor, micro_batch: int, max_norm: float | None, runtime: Runtime
) -> tuple[Outcome, dict[str, torch.Tensor]]:
    """Step by plain descent at rate 1, so that each weight's change is the gradient that the step used."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = runtime.accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    schedule = get_scheduler("constant", optimizer)
    batch = Batch(
        [{"input_ids": part} for part in windows_BT.split(micro_batch)],
        windows_BT.shape[0] * (windows_BT.shape[1] - 1),
        64,
    )
    outcome = train_step(CausalLMLoss(model), optimizer, schedule, batch, max_norm, runtime)
    return outcome, {name: before[name] - p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_step_over_any_micro_batches_has_the_gradient_of_one_reference_loss(
    model: PreTrainedModel, windows_BT: torch.Tensor, micro_batch: int, runtime: Runtime
) -> None:
    expected = reference_gradient(model, windows_BT)
    _, used = take_step(model, windows_BT, micro_batch, None, runtime)
    assert used.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(used[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_step_reports_the_mean_loss_over_the_global_batch(
    model: PreTrainedModel, windows_BT: torch.Tensor, micro_batch: int, runtime: Runtime
) -> None:
    expected = reference_loss(model, windows_BT)
    outcome, _ = take_step(model, windows_BT, micro_batch, 1.0, runtime)
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_step_clips_the_norm_of_the_whole_gradient_as_torch_does(
    model: PreTrainedModel, windows_BT: torch.Tensor, limit: float, runtime: Runtime
) -> None:
    reference = copy.deepcopy(model)
    reference_loss(reference, windows_BT).backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), limit)
    assert norm > 0.05
    outcome, used = take_step(model, windows_BT, 1, limit, runtime)
    torch.testing.assert_close(outcome.grad_norm, norm, rtol=1e-4, atol=0.0)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(used[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_step_leaves_no_gradient_behind(model: PreTrainedModel, windows_BT: torch.Tensor, runtime: Runtime) -> None:
    take_step(model, windows_BT, 2, 1.0, runtime)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_rate(
    value: float, model: PreTrainedModel, windows_BT: torch.Tensor, runtime: Runtime
) -> None:
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient.fill_(value))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    training = settings(schedule="linear", warmup_steps=0)
    optimizer = runtime.accelerator.prepare_optimizer(make_optimizer(model, training))
    schedule = make_schedule(optimizer, training, STEPS)
    batch = Batch([{"input_ids": windows_BT}], 4 * 15, 64)
    outcome = train_step(CausalLMLoss(model), optimizer, schedule, batch, 1.0, runtime)
    assert outcome.skipped and not math.isfinite(outcome.grad_norm)
    assert schedule.get_last_lr() == [training.learning_rate] * 2
    assert not optimizer.state, "AdamW's means are as before"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_weight_decay_is_set_for_matrices_and_spares_biases_and_norms(model: PreTrainedModel) -> None:
    decay = {
        id(parameter): group["weight_decay"]
        for group in make_optimizer(model, settings(weight_decay=0.3)).param_groups
        for parameter in group["params"]
    }
    found = {name: decay[id(parameter)] for name, parameter in model.named_parameters()}
    spared = {name for name in found if name.endswith("bias") or ".ln_" in name}
    assert {name for name, value in found.items() if value == 0.0} == spared
    assert {value for name, value in found.items() if name not in spared} == {0.3}


def undecayed(values: dict[str, Any]) -> set[str]:
    """Names, without the numbers of layers, of the parameters of two or more dimensions that are spared."""
    model = new_model(values, 16, 99)
    groups = make_optimizer(model, settings()).param_groups
    spared = {id(parameter) for group in groups if group["weight_decay"] == 0.0 for parameter in group["params"]}
    return {name.rsplit(".", 1)[-1] for name, p in model.named_parameters() if id(p) in spared and p.dim() >= 2}


@pytest.mark.parametrize(
    ("family", "changes", "spared"),
    [
        ("mamba", {}, {"A_log"}),
        ("zamba", {}, {"A_log", "D", "dt_proj_bias"}),
        ("kimi_linear", {}, {"A_log"}),
        ("rwkv", {}, {"time_mix_key", "time_mix_receptance", "time_mix_value"}),
        ("gpt_oss", {}, {"gate_up_proj_bias", "down_proj_bias"}),
        ("cohere", {"use_qk_norm": True}, {"weight"}),
        ("inkling_text", {}, set()),
    ],
)
def test_weight_decay_spares_recurrences_biases_and_norms_that_are_no_vectors(
    family: str, changes: dict[str, Any], spared: set[str]
) -> None:
    assert undecayed({**tiny_config(family), **changes}) == spared


def test_a_parameter_that_its_model_marks_is_spared() -> None:
    model = torch.nn.Linear(3, 3, bias=False)
    model.weight._no_weight_decay = True  # type: ignore[assignment]
    assert [group["weight_decay"] for group in make_optimizer(model, settings()).param_groups if group["params"]] == [
        0.0
    ]


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_what_routers_add_counts_by_the_tokens_of_each_micro_batch(
    micro_batch: int, windows_BT: torch.Tensor, runtime: Runtime
) -> None:
    model = new_model({**tiny_config("mixtral"), "output_router_logits": True, "router_aux_loss_coef": 0.5}, 16, 99)
    parts = windows_BT.split(micro_batch)
    model.zero_grad()
    expected = sum((reference_loss(model, part) * len(part) / 4 for part in parts), torch.zeros(()))
    expected.backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    outcome, used = take_step(model, windows_BT, micro_batch, None, runtime)
    torch.testing.assert_close(outcome.loss, expected.detach(), rtol=1e-5, atol=0.0)
    for name, value in gradient.items():
        torch.testing.assert_close(used[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_adamw_takes_its_settings(model: PreTrainedModel) -> None:
    optimizer = make_optimizer(model, settings(beta1=0.8, beta2=0.88, epsilon=1e-7))
    assert all(group["betas"] == (0.8, 0.88) and group["eps"] == 1e-7 for group in optimizer.param_groups)
    assert all(group["lr"] == 1e-2 for group in optimizer.param_groups)


def test_a_frozen_parameter_is_not_optimized(model: PreTrainedModel) -> None:
    frozen = model.get_input_embeddings().weight
    frozen.requires_grad_(False)
    optimized = [p for group in make_optimizer(model, settings()).param_groups for p in group["params"]]
    assert all(parameter is not frozen for parameter in optimized)
    assert len(optimized) == len(list(model.parameters())) - 1


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": "adamw"}, {"optimizer": "adafactor"}, {"optimizer": "sgd"}, {"optimizer": "sgd", "beta1": 0.0},
     {"optimizer": "muon"}],
    ids=lambda changes: "-".join(map(str, changes.values())),
)  # fmt: skip
def test_an_optimizers_state_takes_the_bytes_that_are_told_of_a_model_without_weights(
    model: PreTrainedModel, windows_BT: torch.Tensor, changes: dict[str, Any]
) -> None:
    training = settings(**changes)
    optimizer = make_optimizer(model, training)
    reference_loss(model, windows_BT).backward()
    optimizer.step()
    state = optimizer.state_dict()["state"].values()
    kept = sum(value.nbytes for of_one in state for value in of_one.values() if isinstance(value, torch.Tensor))
    assert state_bytes(sketch_model(model.config), training) == kept
