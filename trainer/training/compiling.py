"""Compiling a model together with its loss, and a look at whether what comes out still learns."""

import logging
import math
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.common.errors import ConfigError
from trainer.data.dataset import Batch
from trainer.models.layers import find_blocks
from trainer.models.losses import leave_out_masks
from trainer.training.runtime import Runtime, seed_everything
from trainer.training.sharding import is_sharded, norms_of

log = logging.getLogger(__name__)


LOST = 0.01
"""Share of the plain gradient's norm below which a compiled one is lost: no other mask of dropout gives so little."""

NOTABLE = 0.1
"""Share of the gradient's norm above which one parameter's part of it cannot be lost by chance, as an expert's could.
"""


def compile_objective(
    objective: nn.Module, model: PreTrainedModel, runtime: Runtime, batch: Batch, pads: bool = False
) -> None:
    """Compile a model with its loss, in place, and compare the gradient of a micro-batch with that of the plain one.

    If what it reads `pads`, it is compiled for all shapes at once. The compiler still looks at those it is shown first
    (how a sum is divided depends on them, and so its last bits), so each process of a run must give the same batch.

    On a CPU the compiler's own generator for dropout is several times slower than PyTorch's, which is used instead.
    Raises `ConfigError`, on every rank, if the gradient is lost on one: torch 2.11 once gave zeros, and nothing was
    learnt.
    """
    inputs = {name: value.to(runtime.device) for name, value in batch.micro_batches[0].items()}
    if inputs.keys() == {"input_ids"}:  # rows of text without padding
        leave_out_masks(model, inputs["input_ids"])
    torch.compiler.reset()  # what another run of this process compiled counts against the compiler's limits
    # How many texts a row holds, `text_ends` finds in its data.
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    # What gathers the weights of a sharded model's blocks is not compiled, so each block is by itself.
    for module in find_blocks(model) if is_sharded(model) else [objective]:
        module.compile(
            dynamic=pads or None, options={"fallback_random": True} if runtime.device.type == "cpu" else None
        )
    difference = _compare(objective, inputs, batch.targets, runtime)
    if runtime.any(difference is not None):
        raise ConfigError(
            f"training.compile: compiled by torch {torch.__version__}, the model would not learn as it should "
            f"({difference or 'as another rank found'}); set training.compile to false, or take another version of "
            "torch"
        )


def _compare(objective: nn.Module, inputs: Mapping[str, torch.Tensor], targets: float, runtime: Runtime) -> str | None:
    """What is wrong with the compiled gradient, if anything is."""
    compiled = _gradient_norms(objective, inputs, targets, runtime)
    try:
        with torch.compiler.set_stance("force_eager"):
            plain = _gradient_norms(objective, inputs, targets, runtime)
    except torch.OutOfMemoryError:  # not compiled, a model takes more
        torch.cuda.empty_cache()
        _warn(runtime, "there is no memory for that of the plain one")
        return None
    if not math.isfinite(math.hypot(*plain.values())):
        _warn(runtime, "that of the plain one is not finite")
        return None
    return _difference(compiled, plain)


def _warn(runtime: Runtime, reason: str) -> None:
    log.warning("rank %d: the compiled model's gradient is not compared: %s", runtime.rank, reason)


def _gradient_norms(
    objective: nn.Module, inputs: Mapping[str, torch.Tensor], targets: float, runtime: Runtime
) -> dict[str, float]:
    """The norm of every parameter's gradient of a micro-batch's share of the loss; leaves no gradients, whatever
    happens.
    """
    was_training = objective.training
    objective.train()
    seed_everything(0, 0, runtime.rank)
    try:
        # Which a sharded model has not: its gradients are summed over the ranks.
        with runtime.accelerator.no_sync(objective):
            runtime.accelerator.backward(objective(**inputs) / targets)
        gradients = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
        norms = norms_of(gradients.values(), runtime).tolist()
    finally:
        objective.zero_grad(set_to_none=True)
        objective.train(was_training)
    return dict(zip(gradients, norms, strict=True))


def _difference(compiled: dict[str, float], plain: dict[str, float]) -> str | None:
    """What the compiled gradient lacks of the plain one, beyond rounding and chance."""
    whole = math.hypot(*plain.values())
    found = math.hypot(*compiled.values())
    if not found >= LOST * whole or math.isinf(found):
        return f"its gradient's norm is {found:.3g}, and {whole:.3g} without training.compile"
    lost = [name for name, norm in plain.items() if norm > NOTABLE * whole and not compiled.get(name)]
    return f"{lost[0]} gets no gradient" if lost else None
