"""Compiling a model together with its loss, and checking that the compiled gradient is right."""

import errno
import logging
import math
import os
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.common.errors import ConfigError, StorageError, reason_of
from trainer.common.transient import FULL, number_of
from trainer.data.dataset import Batch
from trainer.models.attention_masks import leave_out_masks
from trainer.models.layers import find_blocks, in_mode
from trainer.training.runtime import Runtime, seed_everything
from trainer.training.sharding import is_sharded, norms_of

log = logging.getLogger(__name__)

NO_SPACE = os.strerror(errno.ENOSPC)
"""Also in the output of a compiler that PyTorch runs."""


LOST = 0.01
"""A compiled gradient is lost if its norm is below this share of the plain one's; other dropout masks change less."""

NOTABLE = 0.1
"""A parameter whose gradient has more than this share of the total norm cannot lose it by chance, as an expert could.
"""


def compile_objective(
    objective: nn.Module, model: PreTrainedModel, runtime: Runtime, batch: Batch, pads: bool = False
) -> None:
    """Compile a model with its loss, in place, and compare a micro-batch's gradient with that of the uncompiled model.

    If rows are padded (`pads`), it is compiled for all shapes at once. The compiled code still depends on the first
    shapes (which determine how sums are split, and so their rounding), so each process of a run must pass the same
    batch.

    On a CPU, PyTorch's generator for dropout replaces the compiler's own, which is several times slower. Raises
    `ConfigError` on every rank if the gradient is lost on one: torch 2.11 once returned zeros, and the model did not
    learn. Raises `StorageError` if the compiled code cannot be written.
    """
    inputs = {name: value.to(runtime.device) for name, value in batch.micro_batches[0].items()}
    if inputs.keys() == {"input_ids"}:  # rows of text without padding
        leave_out_masks(model, inputs["input_ids"])
    torch.compiler.reset()  # earlier compilations of this process count towards the compiler's limits
    # `text_ends` finds the number of texts of a row in its data.
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    # Gathering the weights of a sharded model's blocks is not compiled, so each block is compiled separately.
    for module in find_blocks(model) if is_sharded(model) else [objective]:
        module.compile(
            dynamic=pads or None, options={"fallback_random": True} if runtime.device.type == "cpu" else None
        )
    try:
        difference = _compare(objective, inputs, batch.targets, runtime)
    except RuntimeError as error:
        cause = getattr(error, "inner_exception", error)  # of the compiler
        full = number_of(cause) in FULL or NO_SPACE in str(cause)
        if not full and number_of(cause) not in (errno.EACCES, errno.EROFS):
            raise
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        raise StorageError(
            f"cannot write compiled code to {cache_dir()}: {NO_SPACE if full else reason_of(cause)}; free some space "
            "there, or set TORCHINDUCTOR_CACHE_DIR to a writable folder on a larger disk", full,
        ) from error  # fmt: skip
    if runtime.any(difference is not None):
        raise ConfigError(
            f"training.compile: the model compiled by torch {torch.__version__} would not train correctly "
            f"({difference or 'as another rank found'}); set training.compile to false, or install another version of "
            "torch"
        )


def _compare(objective: nn.Module, inputs: Mapping[str, torch.Tensor], targets: float, runtime: Runtime) -> str | None:
    """The defect of the compiled gradient, or None."""
    compiled = _gradient_norms(objective, inputs, targets, runtime)
    try:
        with torch.compiler.set_stance("force_eager"):
            plain = _gradient_norms(objective, inputs, targets, runtime)
    except torch.OutOfMemoryError:  # an uncompiled model needs more memory
        torch.cuda.empty_cache()
        _warn(runtime, "there is not enough memory to compute the uncompiled one")
        return None
    if not math.isfinite(math.hypot(*plain.values())):
        _warn(runtime, "the uncompiled one is not finite")
        return None
    return _difference(compiled, plain)


def _warn(runtime: Runtime, reason: str) -> None:
    log.warning("rank %d: the compiled model's gradient is not compared: %s", runtime.rank, reason)


def _gradient_norms(
    objective: nn.Module, inputs: Mapping[str, torch.Tensor], targets: float, runtime: Runtime
) -> dict[str, float]:
    """The norm of each parameter's gradient of a micro-batch's share of the loss; always clears the gradients."""
    seed_everything(0, 0, runtime.rank)
    try:
        # A sharded model has no `no_sync`: its gradients are summed over the ranks.
        with in_mode(objective, training=True), runtime.accelerator.no_sync(objective):
            runtime.accelerator.backward(objective(**inputs) / targets)
        gradients = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
        norms = norms_of(gradients.values(), runtime).tolist()
    finally:
        objective.zero_grad(set_to_none=True)
    return dict(zip(gradients, norms, strict=True))


def _difference(compiled: dict[str, float], plain: dict[str, float]) -> str | None:
    """What the compiled gradient lacks, beyond rounding and chance."""
    whole = math.hypot(*plain.values())
    found = math.hypot(*compiled.values())
    if not found >= LOST * whole or math.isinf(found):
        return f"its gradient's norm is {found:.3g}, and {whole:.3g} without training.compile"
    lost = [name for name, norm in plain.items() if norm > NOTABLE * whole and not compiled.get(name)]
    return f"{lost[0]} gets no gradient" if lost else None
