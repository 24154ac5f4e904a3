"""The language-model loss without holding all logits at once.

In training, output projection and cross-entropy are computed together for some tokens at a time, gradients included.
This reduces memory traffic, and no [tokens, vocabulary] tensor is kept for the backward pass.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.nn import functional as F
from transformers import PreTrainedModel

from trainer.common.errors import ConfigError
from trainer.models.documents import positions
from trainer.models.layers import in_mode
from trainer.models.pretrained import most_positions

IGNORED = -100
"""Label of positions that are not predicted."""

ROUNDING = 1e-5
"""Largest difference in nats between two means of the same losses that counts as rounding."""

LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**28}
"""Logits held at a time: on a CPU 8 MiB in float32, about the size of its cache; on a GPU 1 GiB, to keep it busy."""

GPU_SHARE = 2**8
"""On a small GPU, bytes of its memory per logit held at a time; a logit with gradient and copies takes about 12."""

UNROLLED = 16
"""Most pieces when compiling, because the compiler unrolls the loop over them."""


class CausalLMLoss(nn.Module):
    """A language model together with its loss, so that both are wrapped, cast and compiled as one."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.adds = adds_to_loss(model)
        self._in_pieces = has_plain_head(model) and not self.adds

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum over the batch of -log p(next token), in nats; `input_ids` has shape [B, T], B * (T - 1) tokens count.

        `labels`, of the same shape, are the tokens, or `IGNORED` for tokens that are not predicted. Another text begins
        where `position_ids` restart, and does not see the one before. `weight` scales the sum; 0 excludes the batch.

        A term that the model adds to its mean loss counts once per predicted token, so that micro-batches and ranks
        are weighted by their size; a router's balance over experts is computed within each micro-batch. Only such
        models need `attention_mask`, of shape [B, T], 0 for padding on the right: padding must not count in the
        balance, while causal attention ignores it anyway. Padding in a row of several texts does count.
        """
        labels = input_ids if labels is None else labels
        targets = next_tokens(labels)
        loss: torch.Tensor
        if self.adds:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **positions(self.model, position_ids)}
            mean = self.model(**inputs, labels=labels, use_cache=False).loss
            count = (targets != IGNORED).sum()
            loss = torch.where(count > 0, mean, 0.0) * count  # the mean over no tokens is NaN
        elif self._in_pieces:
            loss = with_weights(loss_in_pieces, self.model, input_ids, targets, position_ids)
        else:
            loss = token_losses(self.model, input_ids, targets, position_ids).sum()
        return loss if weight is None else loss * weight


def with_weights(function: Callable[..., Any], model: PreTrainedModel, *inputs: torch.Tensor | None) -> Any:
    """Call a function that uses a model's weights outside its `forward`; a sharded model's weights are gathered."""
    if not isinstance(model, FSDPModule):
        return function(model, *inputs)
    if not hasattr(model, function.__name__):
        setattr(model, function.__name__, lambda inputs: function(model, *inputs))
        register_fsdp_forward_method(model, function.__name__)
    return getattr(model, function.__name__)(inputs)  # one tuple: without arguments torch 2.11 raises on a GPU


def loss_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None
) -> torch.Tensor:
    """The sum of -log p(label) for a plain head, some tokens at a time. Shapes [B, T], [B, T] -> a scalar."""
    inputs = _head_inputs(model, input_ids, labels, position_ids)
    loss: torch.Tensor = PiecewiseCrossEntropy.apply(*inputs)  # type: ignore[no-untyped-call]
    return loss


def _head_inputs(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The last hidden states, a plain head's weight, and the labels, of shapes [N, H], [V, H] and [N]."""
    hidden = model.base_model(input_ids=input_ids, **positions(model, position_ids), use_cache=False).last_hidden_state
    return hidden.flatten(0, 1), model.get_output_embeddings().weight, labels.flatten()


def next_tokens(input_ids: torch.Tensor) -> torch.Tensor:
    """Labels of next-token prediction; the last position has none. Shapes [B, T] -> [B, T]."""
    return F.pad(input_ids[:, 1:], (0, 1), value=IGNORED)


def token_losses(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """-log p(label) of each position in nats, float32, 0 for ignored labels. Shapes [B, T], [B, T] -> [B * T]."""
    return cross_entropies(model(input_ids=input_ids, **positions(model, position_ids), use_cache=False).logits, labels)


def token_losses_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Like `token_losses`, without holding all logits if the head is plain; gradients recompute each piece."""
    if not has_plain_head(model):
        return token_losses(model, input_ids, labels, position_ids)
    losses: torch.Tensor = with_weights(_each_loss_in_pieces, model, input_ids, labels, position_ids)
    return losses


def _each_loss_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None
) -> torch.Tensor:
    inputs = _head_inputs(model, input_ids, labels, position_ids)
    losses: torch.Tensor = PiecewiseCrossEntropies.apply(*inputs)  # type: ignore[no-untyped-call]
    return losses


def cross_entropies(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """-log p(label) of each position in nats, 0 for ignored labels. Shape [B * T], float32."""
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORED, reduction="none"
    )


@torch.no_grad()
def adds_to_loss(model: PreTrainedModel) -> bool:
    """Whether the model's own loss is next-token loss plus another term, such as a penalty on its routers.

    Tested in training mode with two sets of labels: an added term does not depend on them. Families that do not shift
    labels themselves are allowed. Raises `ConfigError` if the model's own loss is not a next-token loss.
    """
    config = model.config.get_text_config()
    length = min(8, config.vocab_size, most_positions(config))
    input_ids = torch.arange(length, device=model.device)[None]
    beyond: list[float] = []
    unshifted: list[float] = []
    for labels in (input_ids, input_ids.flip(1)):
        random = torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else [])
        with in_mode(model, training=True), random:
            torch.manual_seed(0)
            output = model(input_ids=input_ids, labels=labels, use_cache=False)
        labels = labels.to(output.logits.device)  # a sharded model may compute on another device than its weights'
        for found, targets in ((beyond, next_tokens(labels)), (unshifted, labels)):
            found.append(
                float(output.loss - cross_entropies(output.logits, targets).sum() / (targets != IGNORED).sum())
            )
    if max(map(abs, beyond)) <= ROUNDING or max(map(abs, unshifted)) <= ROUNDING:
        return False
    if abs(beyond[0] - beyond[1]) > ROUNDING:
        raise ConfigError(
            f"transformers trains a {model.config.model_type!r} model with a loss other than next-token prediction; "
            "use a family that predicts the next token, such as gpt2, llama or mamba"
        )
    return True


def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are the last hidden states times the output embeddings; some families scale or cap them.

    Tested once per model and cached, because the test changes weights temporarily.
    """
    if model not in _plain_heads:
        _plain_heads[model] = with_weights(_try_plain_head, model)
    return _plain_heads[model]


_plain_heads: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@torch.no_grad()
def _try_plain_head(model: PreTrainedModel) -> bool:
    """Test with large output embeddings, because a cap hardly changes the small logits of a new model."""
    output = model.get_output_embeddings()
    if not isinstance(output, nn.Linear) or output.bias is not None:
        return False
    weight = output.weight.clone()
    output.weight.div_(weight.std())
    input_ids = torch.arange(4, device=weight.device)[None]
    with in_mode(model, training=False):
        hidden = getattr(model.base_model(input_ids=input_ids, use_cache=False), "last_hidden_state", None)
        logits = model(input_ids=input_ids, use_cache=False).logits
    plain = hidden is not None and torch.allclose(logits.float(), output(hidden).float(), rtol=1e-4, atol=1e-5)
    output.weight.copy_(weight)
    return plain


def matmul_dtype(values: torch.Tensor) -> torch.dtype:
    """The type in which a matrix product with these values is computed."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype


def rows_at_once(rows: int, vocabulary: int, device: torch.device) -> int:
    """The number of rows of logits held at a time; it depends on the device only, as it affects the last bits."""
    at_once: int = max(1, logits_at_once(device.type) // vocabulary)
    return max(at_once, -(-rows // UNROLLED)) if torch.compiler.is_compiling() else at_once


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def logits_at_once(kind: str) -> int:
    """The number of logits held at a time on this process's device."""
    if kind != "cuda":
        return LOGITS_AT_ONCE[kind]
    memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return min(LOGITS_AT_ONCE[kind], int(memory) // GPU_SHARE)


def losses_and_gradient(
    logits_NV: torch.Tensor, targets_N1: torch.Tensor, weights_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted sum of the losses, and its gradient to the logits in their type; float32 logits are overwritten."""
    logits, compiled = logits_NV.float(), torch.compiler.is_compiling()
    log_sum = _log_sum_in_a_pass(logits) if compiled else torch.logsumexp(logits, dim=1, keepdim=True)
    loss = ((log_sum - logits.gather(1, targets_N1)).squeeze(1) * weights_N).sum()
    if compiled:  # without a scatter the compiler need not store the float32 gradient
        is_target = torch.arange(logits.shape[1], device=logits.device) == targets_N1
        grad = ((logits - log_sum).exp() - is_target.float()) * weights_N.unsqueeze(1)
    else:
        grad = logits.sub_(log_sum).exp_()
        # `scatter_add_` would sum in nondeterministic order on a GPU.
        grad.scatter_(1, targets_N1, grad.gather(1, targets_N1) - 1).mul_(weights_N.unsqueeze(1))
    return loss, grad.to(logits_NV.dtype)


def _log_sum_in_a_pass(logits: torch.Tensor) -> torch.Tensor:
    """`logsumexp` in the form that the compiler turns into an online softmax: one pass over the logits."""
    most = logits.amax(dim=1, keepdim=True)
    return (logits - most).exp().sum(dim=1, keepdim=True).log() + most


def loss_and_gradients(
    states_NH: torch.Tensor, matrix_VH: torch.Tensor, labels_N: torch.Tensor, weights_N: torch.Tensor, learns: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The weighted sum of -log softmax(state_n @ matrix.T)[label_n], and its gradients.

    They are the gradient to the states, in their type, and if it `learns` that to the matrix, summed in float32: a
    sharded model gathers weights in half precision, which is too coarse for the sum.
    """
    compiled, targets_N1 = torch.compiler.is_compiling(), labels_N.clamp_min(0).unsqueeze(1)
    loss = torch.zeros((), device=states_NH.device, dtype=torch.float32)
    grad_matrix = torch.zeros_like(matrix_VH, dtype=torch.float32) if learns else None
    # Made before: small tensors, kept between large temporary ones, would leave holes in a CPU's memory that the next
    # large ones do not fit in. Compiled by torch 2.11, the backward pass would read values from before their change.
    grad_states, pieces = None if compiled else torch.empty_like(states_NH), []
    for rows in slices(labels_N, matrix_VH):
        lost, grad = losses_and_gradient(states_NH[rows] @ matrix_VH.T, targets_N1[rows], weights_N[rows])
        loss = loss + lost
        if grad_states is None:
            pieces.append(grad @ matrix_VH)
        else:
            grad_states[rows] = grad @ matrix_VH
        if grad_matrix is None:
            continue
        if compiled:
            grad_matrix = grad_matrix + grad.T @ states_NH[rows]
        elif grad.dtype == grad_matrix.dtype:
            # Without a temporary matrix, which would take a CPU half as long again.
            grad_matrix.addmm_(grad.T, states_NH[rows])
        else:
            grad_matrix += grad.T @ states_NH[rows]
    return loss, torch.cat(pieces) if grad_states is None else grad_states, grad_matrix


def slices(labels_N: torch.Tensor, matrix_VH: torch.Tensor) -> list[slice]:
    """The rows whose logits are computed together; compiled code serves all row counts with this number of slices."""
    at_once = rows_at_once(len(labels_N), len(matrix_VH), labels_N.device)
    return [slice(piece * at_once, (piece + 1) * at_once) for piece in range(-(-len(labels_N) // at_once))]


class PiecewiseCrossEntropy(torch.autograd.Function):
    """sum_n -log softmax(hidden_n @ weight.T)[label_n]; shapes hidden [N, H], weight [V, H], labels [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar. Its gradient to a logit is the probability, minus one at the label."""
        states, matrix = (each.to(matmul_dtype(hidden)) for each in (hidden, weight))
        loss, grad_states, grad_weight = loss_and_gradients(
            states, matrix, labels, labels != IGNORED, ctx.needs_input_grad[1]
        )
        ctx.save_for_backward(grad_states.to(hidden.dtype), grad_weight)
        ctx.weight_dtype = weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Scale the gradients from the forward pass, before conversion: unscaled they may overflow half precision."""
        grad_hidden, grad_weight = ctx.saved_tensors
        scaled = None if grad_weight is None else (grad_weight * upstream[0]).to(ctx.weight_dtype)
        return grad_hidden * upstream[0], scaled, None


class PiecewiseCrossEntropies(torch.autograd.Function):
    """-log softmax(hidden_n @ weight.T)[label_n] of each n, 0 for ignored labels; shapes as above, and [N].

    The backward pass computes the logits again, because it is the first to know how much each loss counts.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The losses, float32."""
        ctx.save_for_backward(hidden, weight, labels)
        ctx.dtype = matmul_dtype(hidden)
        states, matrix = hidden.to(ctx.dtype), weight.to(ctx.dtype)
        losses = torch.empty(
            len(labels), device=hidden.device, dtype=torch.float32
        )  # made before, as the gradients are
        for rows in slices(labels, weight):
            losses[rows] = cross_entropies((states[rows] @ matrix.T)[None], labels[rows])
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """The sum of the losses' gradients, each times the gradient to the loss."""
        hidden, weight, labels = ctx.saved_tensors
        weights, states, matrix = upstream[0] * (labels != IGNORED), hidden.to(ctx.dtype), weight.to(ctx.dtype)
        _, grad_states, grad_weight = loss_and_gradients(states, matrix, labels, weights, ctx.needs_input_grad[1])
        return grad_states.to(hidden.dtype), None if grad_weight is None else grad_weight.to(weight.dtype), None
