"""Compiling a model together with its loss, and a look at whether what comes out still learns."""

import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.errors import ConfigError
from trainer.plain_attention import leave_out_masks
from trainer.runtime import Runtime, seed_everything

log = logging.getLogger(__name__)

FAR_OFF = 3.0
"""Ratio of two gradients' norms that no other order of sums, and no other mask of dropout, explains."""

NOTABLE = 0.1
"""Share of the gradient's norm above which one parameter's part of it cannot be lost by chance, as an expert's could."""

Inputs = Mapping[str, torch.Tensor]


def compile_objective(
    objective: nn.Module, model: PreTrainedModel, runtime: Runtime, read_sample: Callable[[], Inputs]
) -> None:
    """Compile a model with its loss, in place, and compare the gradient of a micro-batch with that of the plain one.

    On a CPU the compiler's own generator for dropout is several times slower than PyTorch's, which is used instead.
    Raises `ConfigError` if the gradients are not about the same: torch 2.11 once gave zeros, and nothing was learnt.
    """
    inputs = {name: value.to(runtime.device) for name, value in read_sample().items()}
    if inputs.keys() == {"input_ids"}:  # rows of text without padding
        leave_out_masks(model, inputs["input_ids"])
    objective.compile(options={"fallback_random": True} if runtime.device.type == "cpu" else None)
    compiled = _gradient_norms(objective, inputs, runtime)
    try:
        with torch.compiler.set_stance("force_eager"):
            plain = _gradient_norms(objective, inputs, runtime)
    except torch.OutOfMemoryError:  # not compiled, a model takes more
        log.warning("the compiled model's gradient is not compared: there is no memory for that of the plain one")
        return
    if difference := _difference(compiled, plain):
        raise ConfigError(
            f"training.compile: compiled by torch {torch.__version__}, the model would not learn as it should ({difference}); "
            "set training.compile to false, or take another version of torch"
        )


def _gradient_norms(objective: nn.Module, inputs: Inputs, runtime: Runtime) -> dict[str, float]:
    """The norm of every parameter's gradient over one micro-batch; leaves no gradients."""
    was_training = objective.training
    objective.train()
    seed_everything(0, 0, runtime.rank)
    with runtime.accelerator.no_sync(objective):
        runtime.accelerator.backward(objective(**inputs))
    gradients = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
    norms = torch.stack([gradient.float().norm() for gradient in gradients.values()]).tolist()
    objective.zero_grad(set_to_none=True)
    objective.train(was_training)
    return dict(zip(gradients, norms, strict=True))


def _difference(compiled: dict[str, float], plain: dict[str, float]) -> str | None:
    """What tells two gradients apart by more than rounding and chance, if anything does."""
    whole = [math.hypot(*norms.values()) for norms in (compiled, plain)]
    if not all(map(math.isfinite, whole)):
        return None  # a matter of the model: training tells of it
    if max(whole) > FAR_OFF * min(whole):
        return f"its gradient's norm is {whole[0]:.3g}, and {whole[1]:.3g} without training.compile"
    lost = [name for name, norm in plain.items() if norm > NOTABLE * whole[1] and not compiled.get(name)]
    return f"{lost[0]} gets no gradient" if lost else None
