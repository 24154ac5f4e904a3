"""One optimizer step, in mathematical order: forward, scale, backward, unscale, clip, step, update, zero.

It also defines the optimizers: torch's own, and Muon (Jordan et al. 2024) for the matrices of a model's blocks.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from trainer.common.errors import ConfigError
from trainer.config.training import MuonConfig, OptimizationConfig
from trainer.data.dataset import Batch
from trainer.models.layers import find_blocks
from trainer.training.runtime import Runtime
from trainer.training.sharding import clip_gradients, unsynchronised

MARK = "ns_steps"
"""A setting that only Muon's parameter groups have."""


class Muon(torch.optim.Muon):
    """torch's Muon, for models that store some weights with one row per input instead of per output.

    Jordan's learning rate grows with outputs / inputs, which torch computes as rows / columns: such weights are passed
    as transposed views.
    """

    def __init__(self, matrices: list[nn.Parameter], transposed: set[nn.Parameter], **settings: Any) -> None:
        super().__init__(matrices, **settings)
        self._transposed = transposed

    def _init_group(self, group: Any, params: Any, grads: Any, moments: Any) -> bool:
        has_complex = super()._init_group(group, params, grads, moments)
        for place, parameter in enumerate(params):
            if parameter in self._transposed:
                params[place], grads[place], moments[place] = parameter.T, grads[place].T, moments[place].T
        return has_complex


class MuonWithAdamW(torch.optim.Optimizer):
    """Both optimizers with one list of groups, AdamW's first, and one state; each parameter belongs to one of them."""

    def __init__(self, adamw: torch.optim.AdamW, muon: torch.optim.Muon) -> None:
        self._adamw, self._muon = adamw, muon
        groups = [*adamw.param_groups, *muon.param_groups]
        filled = [group for group in groups if group["params"]]
        if len(filled) < len(groups) - 1:  # an adapter leaves AdamW no parameters; checkpoints list no group of them
            groups = filled
        super().__init__(groups, {"lr": adamw.defaults["lr"]})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step with both optimizers."""
        assert closure is None, "the loop computes the loss"
        self._adamw.step()
        self._muon.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called when a state is loaded, which replaces groups and state."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        for part, of_muon in ((self._adamw, False), (self._muon, True)):
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if (MARK in group) == of_muon]


def make_muon(
    model: nn.Module, matrices: set[nn.Parameter], others: torch.optim.AdamW, training: OptimizationConfig
) -> MuonWithAdamW:
    """Muon for some matrices of a model, and AdamW for all other parameters."""
    options = training.muon or MuonConfig()
    turned = {module.weight for module in model.modules() if isinstance(module, Conv1D)}
    muon = Muon(
        [each for each in model.parameters() if each in matrices],
        turned if options.adjust_lr == "original" else set(),  # the other adjustment is symmetric
        lr=options.learning_rate or training.learning_rate, weight_decay=training.weight_decay,
        momentum=options.momentum, nesterov=options.nesterov, ns_steps=options.ns_steps,
        adjust_lr_fn=options.adjust_lr,
    )  # fmt: skip
    return MuonWithAdamW(others, muon)


def block_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The matrices in a model's blocks, without embeddings; nothing outside the blocks, such as the head.

    Raises `ConfigError` if there are none.
    """
    modules = [module for block in find_blocks(model) for module in block.modules()]
    found = {
        parameter
        for module in modules
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2 and parameter.requires_grad
    }
    if not found:
        raise ConfigError(
            "training.optimizer is muon, which is for the weight matrices of a model's repeated blocks, but this model "
            "has none that are trained; set training.optimizer to adamw"
        )
    return found


class Outcome(NamedTuple):
    """This rank's part of the step's mean loss (the sum over ranks is the mean), the gradient's norm, and whether the
    step was skipped.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor
    skipped: bool


def _adamw(groups: Any, training: OptimizationConfig) -> torch.optim.AdamW:
    betas = (training.beta1, training.beta2)
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.epsilon, fused=True)


OPTIMIZERS: dict[str, Callable[[Any, OptimizationConfig], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adafactor": lambda groups, t: torch.optim.Adafactor(groups, lr=t.learning_rate),
    "sgd": lambda groups, t: torch.optim.SGD(groups, lr=t.learning_rate, momentum=t.beta1),
}

FLOAT_BYTES = 4
"""Bytes of a float32 number, the type of weights, gradients and the optimizer's state."""


def state_bytes(model: nn.Module, training: OptimizationConfig) -> int:
    """Bytes of the optimizer's state from the first step on; the weights of `model` may be on no device."""
    of_muon = muon_matrices(model) if training.optimizer == "muon" else set()
    trained = [each for each in model.parameters() if each.requires_grad]
    return FLOAT_BYTES * sum(
        each.numel() if each in of_muon else STATE_VALUES[training.optimizer](each, training) for each in trained
    )


def _adafactor_values(parameter: nn.Parameter, training: OptimizationConfig) -> int:
    """Means over a matrix's rows and over its columns, or those of a vector's numbers, and the number of steps."""
    if parameter.dim() < 2:
        return parameter.numel() + 1
    rows, columns = parameter.shape[-2:]
    return parameter.numel() // rows + parameter.numel() // columns + 1


def _adamw_values(parameter: nn.Parameter, training: OptimizationConfig) -> int:
    """Two means, and the number of steps."""
    return 2 * parameter.numel() + 1


STATE_VALUES: dict[str, Callable[[nn.Parameter, OptimizationConfig], int]] = {
    "adamw": _adamw_values,
    "adafactor": _adafactor_values,
    "sgd": lambda parameter, training: parameter.numel() if training.beta1 else 0,
    "muon": _adamw_values,
}
"""How many numbers an optimizer keeps for a parameter; Muon itself keeps one mean for each of its matrices."""


STATE_SPACE = {"A_log", "D", "dt_bias"}
"""Parameters of the recurrence of state-space models: A = -exp(A_log), the skip D, and the bias of the step size dt."""


def make_optimizer(model: nn.Module, training: OptimizationConfig) -> torch.optim.Optimizer:
    """The optimizer, with weight decay for matrices only: not for biases, norms and the parameters of a recurrence."""
    spared = spared_from_decay(model)
    matrices = muon_matrices(model) if training.optimizer == "muon" else set()
    parameters = [
        parameter for parameter in model.parameters() if parameter.requires_grad and parameter not in matrices
    ]
    groups = [
        {"params": [p for p in parameters if p not in spared], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p in spared], "weight_decay": 0.0},
    ]
    if training.optimizer != "muon":
        return OPTIMIZERS[training.optimizer](groups, training)
    return make_muon(model, matrices, _adamw(groups, training), training)


def muon_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The matrices that Muon updates: those of the blocks, without the ones that are spared from weight decay."""
    return block_matrices(model) - spared_from_decay(model)


def spared_from_decay(model: nn.Module) -> set[nn.Parameter]:
    """The parameters without weight decay, which would pull them away from their natural values.

    These are: vectors of any shape; biases and norms, recognised by name because they are matrices if there is one per
    expert or head; and decay, skip and step size of state-space models, as in their reference code (Gu & Dao, 2023),
    which marks them.
    """
    spared = set()
    for module in model.modules():
        is_norm = "norm" in type(module).__name__.lower() and not isinstance(module, nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False):
            vector = parameter.dim() < 2 or (parameter.dim() > 2 and max(parameter.shape) == parameter.numel())
            named = name in STATE_SPACE or "bias" in name or hasattr(parameter, "_no_weight_decay")
            if vector or named or is_norm:
                spared.add(parameter)
    return spared


def train_step(
    objective: nn.Module,
    optimizer: Any,
    schedule: Any,
    batch: Batch,
    max_grad_norm: float | None,
    runtime: Runtime,
    sum_each_micro_batch: bool = False,
) -> Outcome:
    """Step on the mean loss over all targets of the global batch; `objective` returns a micro-batch's sum.

    DDP and FSDP average gradients over ranks, so each rank's sum is scaled by ranks / targets; neither accumulation nor
    the number of ranks changes the gradient.
    """
    accelerator, ranks = runtime.accelerator, runtime.ranks
    loss = torch.zeros((), device=runtime.device)
    last = len(batch.micro_batches) - 1
    for number, inputs in enumerate(batch.micro_batches):
        accumulates = number < last and not sum_each_micro_batch
        with unsynchronised(objective, runtime) if accumulates else nullcontext():
            share = objective(**inputs) / batch.targets
            accelerator.backward(share * ranks)
        loss += share.detach()
    limit = float("inf") if max_grad_norm is None else max_grad_norm
    grad_norm = clip_gradients(objective, limit, runtime)
    # The only wait for the device in a step, because non-finite gradients must not reach the weights. In fp16 the
    # scaler checks that too.
    skipped = not bool(torch.isfinite(grad_norm))
    if not skipped or accelerator.scaler is not None:
        optimizer.step()
        skipped = skipped or bool(accelerator.optimizer_step_was_skipped)
    if not skipped:
        schedule.step()
    optimizer.zero_grad(set_to_none=True)
    return Outcome(loss, grad_norm.detach(), skipped)
