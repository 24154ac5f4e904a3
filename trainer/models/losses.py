"""The language-model loss without ever holding all logits, and attention without masks.

In training, the output projection and the cross-entropy are taken together, some tokens at a time, and the gradients
are computed on the way. So memory traffic falls, and no [tokens, vocabulary] tensor is kept for the backward pass.

While a model is compiled with torch before 2.14, transformers makes a mask even where SDPA's `is_causal` says the same
(`_ignore_causal_mask_sdpa` and `find_packed_sequence_indices` in its masking_utils.py). With a mask the attention
computes what it then leaves out, and a GPU's fastest kernels are not taken. An implementation of attention that has no
function for masks is given none, as transformers' documentation of its AttentionInterface has it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from trainer.common.errors import ConfigError
from trainer.models.documents import APART, positions
from trainer.models.dropout import attend

IGNORED = -100
"""Label of positions that are not predicted."""

ROUNDING = 1e-5
"""Difference of two means of the same losses, in nats, that is rounding."""

LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**28}
"""Logits held at a time: on a processor 8 MiB in float32, about what its cache holds; on a GPU enough to fill it, 1
GiB.
"""

GPU_SHARE = 2**8
"""Of a small GPU's memory, bytes for each logit held at a time: with its gradient and its copies it takes some 12 of
them.
"""

UNROLLED = 16
"""Pieces at most while compiling, as the compiler writes each of them out."""


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
        """Sum over the batch of -log p(next token), in nats; `input_ids` has shape [B, T], B * (T - 1) tokens are
        predicted.

        With `labels` of the same shape, each token itself or `IGNORED`, only those are predicted that have one. Where
        `position_ids` begin anew another text begins, which does not see the one before. `weight` scales the sum: 0 for
        what does not count.

        What a model adds to the mean loss is added for each predicted token, so that micro-batches and ranks count by
        their size. (How evenly a batch is spread over experts depends on what is in the batch: it is looked at by
        micro-batch.) Only such a model needs `attention_mask`, of shape [B, T], 0 for what fills up a row on the right:
        the fill is not to be spread, while no token before it sees it. What fills up a row of several texts counts.
        """
        loss = self._sum(input_ids, input_ids if labels is None else labels, position_ids, attention_mask)
        return loss if weight is None else loss * weight

    def _sum(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        position_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        targets = next_tokens(labels)
        if self.adds:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **positions(self.model, position_ids)}
            mean: torch.Tensor = self.model(**inputs, labels=labels, use_cache=False).loss
            count = (targets != IGNORED).sum()
            return torch.where(count > 0, mean, 0.0) * count  # the mean over nothing is no number
        if not self._in_pieces:
            return token_losses(self.model, input_ids, targets, position_ids).sum()
        loss: torch.Tensor = with_weights(loss_in_pieces, self.model, input_ids, targets, position_ids)
        return loss


def with_weights(function: Callable[..., Any], model: PreTrainedModel, *inputs: torch.Tensor | None) -> Any:
    """Call a function that uses a model's weights outside of its `forward`: of a sharded one, they are gathered as for
    that.
    """
    if not isinstance(model, FSDPModule):
        return function(model, *inputs)
    if not hasattr(model, function.__name__):
        setattr(model, function.__name__, lambda inputs: function(model, *inputs))
        register_fsdp_forward_method(model, function.__name__)
    return getattr(model, function.__name__)(inputs)  # as one: of none at all, torch 2.11 makes an IndexError on a GPU


def loss_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None
) -> torch.Tensor:
    """The sum of -log p(label), of a model with a plain head, some tokens at a time. Shapes [B, T], [B, T] -> a
    scalar.
    """
    hidden = model.base_model(input_ids=input_ids, **positions(model, position_ids), use_cache=False).last_hidden_state
    weight = model.get_output_embeddings().weight
    loss: torch.Tensor = PiecewiseCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, 1), weight, labels.flatten()
    )
    return loss


def next_tokens(input_ids: torch.Tensor) -> torch.Tensor:
    """The label of each position is the token after it; the last position has none. Shapes [B, T] -> [B, T]."""
    return F.pad(input_ids[:, 1:], (0, 1), value=IGNORED)


def token_losses(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """-log p(label) of each position in nats, 0 where the label is ignored. Shapes [B, T], [B, T] -> [B * T],
    float32.
    """
    return cross_entropies(model(input_ids=input_ids, **positions(model, position_ids), use_cache=False).logits, labels)


def token_losses_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The same without ever holding all logits if the head is plain; for gradients, each piece is computed again."""
    if not has_plain_head(model):
        return token_losses(model, input_ids, labels, position_ids)
    losses: torch.Tensor = with_weights(_each_loss_in_pieces, model, input_ids, labels, position_ids)
    return losses


def _each_loss_in_pieces(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None
) -> torch.Tensor:
    output = model.base_model(input_ids=input_ids, **positions(model, position_ids), use_cache=False)
    hidden_NH = output.last_hidden_state.flatten(0, 1)
    matrix, dtype = model.get_output_embeddings().weight, matmul_dtype(hidden_NH)
    at_once = rows_at_once(len(hidden_NH), len(matrix), hidden_NH.device)
    pieces = zip(hidden_NH.to(dtype).split(at_once), labels.flatten().split(at_once), strict=True)

    def losses(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # Each piece's gradient to the weights is added to those of others in the weights' own type.
        return cross_entropies((states @ matrix.to(dtype).T)[None], targets[None])

    if not torch.is_grad_enabled():
        matrix = matrix.to(dtype)  # once
        return torch.cat([losses(states, targets) for states, targets in pieces])
    return torch.cat([checkpoint(losses, states, targets, use_reentrant=False) for states, targets in pieces])


def cross_entropies(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """-log p(label) of each position in nats, 0 where the label is ignored. Shape [B * T], float32."""
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORED, reduction="none"
    )


@torch.no_grad()
def adds_to_loss(model: PreTrainedModel) -> bool:
    """Whether the model's own loss is that of the next token and something more, such as a penalty on its routers.

    It is tried, in training mode: what is added must be the same whatever the labels. Families that do not shift labels
    themselves are no different. Raises `ConfigError` if its own loss is of another kind than that of the next token.
    """
    was_training = model.training
    model.train()
    config = model.config.get_text_config()
    length = min(8, config.vocab_size, getattr(config, "max_position_embeddings", None) or 8)
    input_ids = torch.arange(length, device=model.device)[None]
    beyond: list[float] = []
    unshifted: list[float] = []
    for labels in (input_ids, input_ids.flip(1)):
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(0)
            output = model(input_ids=input_ids, labels=labels, use_cache=False)
        labels = labels.to(output.logits.device)  # where a sharded model computes, its weights need not lie
        for found, targets in ((beyond, next_tokens(labels)), (unshifted, labels)):
            found.append(
                float(output.loss - cross_entropies(output.logits, targets).sum() / (targets != IGNORED).sum())
            )
    model.train(was_training)
    if max(map(abs, beyond)) <= ROUNDING or max(map(abs, unshifted)) <= ROUNDING:
        return False
    if abs(beyond[0] - beyond[1]) > ROUNDING:
        raise ConfigError(
            f"transformers trains a {model.config.model_type!r} model on another loss than that of the next token; "
            "take a family that predicts the next token, such as gpt2, llama or mamba"
        )
    return True


def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are just the last hidden states times the output embeddings; some families scale or cap them.

    It is tried once: a model that is being trained must not be touched.
    """
    if model not in _plain_heads:
        _plain_heads[model] = with_weights(_try_plain_head, model)
    return _plain_heads[model]


_plain_heads: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@torch.no_grad()
def _try_plain_head(model: PreTrainedModel) -> bool:
    """Tried with large output embeddings, because a cap hardly shows in the small logits of a new model."""
    output = model.get_output_embeddings()
    if not isinstance(output, nn.Linear) or output.bias is not None:
        return False
    was_training, weight = model.training, output.weight.clone()
    model.eval()
    output.weight.div_(weight.std())
    input_ids = torch.arange(4, device=weight.device)[None]
    hidden = getattr(model.base_model(input_ids=input_ids, use_cache=False), "last_hidden_state", None)
    logits = model(input_ids=input_ids, use_cache=False).logits
    plain = hidden is not None and torch.allclose(logits.float(), output(hidden).float(), rtol=1e-4, atol=1e-5)
    output.weight.copy_(weight)
    model.train(was_training)
    return plain


def matmul_dtype(values: torch.Tensor) -> torch.dtype:
    """The type that a product with these values is computed in."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype


def rows_at_once(rows: int, vocabulary: int, device: torch.device) -> int:
    """Of so many rows of logits, those that are held at a time; the device alone decides, as the last bits depend on
    it.
    """
    at_once: int = max(1, logits_at_once(device.type) // vocabulary)
    return max(at_once, -(-rows // UNROLLED)) if torch.compiler.is_compiling() else at_once


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def logits_at_once(kind: str) -> int:
    """Logits that are held at a time on this process's device of a kind."""
    if kind != "cuda":
        return LOGITS_AT_ONCE[kind]
    memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return min(LOGITS_AT_ONCE[kind], int(memory) // GPU_SHARE)


def losses_and_gradient(
    logits_NV: torch.Tensor, targets_N1: torch.Tensor, wanted_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the wanted positions' losses, and its gradient to the logits, in their type."""
    logits, compiled = logits_NV.float(), torch.compiler.is_compiling()
    log_sum = _log_sum_in_a_pass(logits) if compiled else torch.logsumexp(logits, dim=1, keepdim=True)
    loss = ((log_sum - logits.gather(1, targets_N1)).squeeze(1) * wanted_N).sum()
    if compiled:  # nothing is put into it, so that the compiler writes no float32 gradient
        is_target = torch.arange(logits.shape[1], device=logits.device) == targets_N1
        grad = (logits - log_sum).exp() - is_target.float()
    else:
        grad = logits.sub_(log_sum).exp_()
        # Were it added in place, the order of sums would be free on a GPU.
        grad.scatter_(1, targets_N1, grad.gather(1, targets_N1) - 1)
    return loss, (grad * wanted_N.unsqueeze(1)).to(logits_NV.dtype)


def _log_sum_in_a_pass(logits: torch.Tensor) -> torch.Tensor:
    """`logsumexp` in the form that the compiler knows for an online softmax: both sums in one pass over the logits."""
    most = logits.amax(dim=1, keepdim=True)
    return (logits - most).exp().sum(dim=1, keepdim=True).log() + most


class PiecewiseCrossEntropy(torch.autograd.Function):
    """sum_n -log softmax(hidden_n @ weight.T)[label_n]; shapes hidden [N, H], weight [V, H], labels [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar. The gradient of the sum to a logit is its probability, less one at the label."""
        wanted, targets = labels != IGNORED, labels.clamp_min(0).unsqueeze(1)
        dtype = matmul_dtype(hidden)
        states, matrix = hidden.to(dtype), weight.to(dtype)  # once, not by every product
        at_once = rows_at_once(len(labels), len(weight), hidden.device)
        total = torch.zeros((), device=hidden.device, dtype=torch.float32)
        # Weights in half precision, as a sharded model gathers them, are not what to sum in.
        grad_weight, grads = torch.zeros_like(weight, dtype=torch.float32), []
        for piece in range(-(-len(labels) // at_once)):  # compiled, it is for all numbers of rows in so many pieces
            rows = slice(piece * at_once, (piece + 1) * at_once)
            loss, grad = losses_and_gradient(states[rows] @ matrix.T, targets[rows], wanted[rows])
            total = total + loss
            grads.append(grad @ matrix)
            # By torch 2.11, the backward pass would read what was there before any `+=`.
            if torch.compiler.is_compiling():
                grad_weight = grad_weight + grad.T @ states[rows]
            else:
                grad_weight += grad.T @ states[rows]
        ctx.save_for_backward(torch.cat(grads).to(hidden.dtype), grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Scale the gradients that the forward pass computed. Before that, the weights' need not fit into half
        precision.
        """
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * upstream[0], (grad_weight * upstream[0]).to(ctx.weight_dtype), None


WITH_MASKS, WITHOUT_MASKS, NOTED = "sdpa", "sdpa_without_masks", "sdpa_with_noted_masks"


@torch.no_grad()
def leave_out_masks(model: PreTrainedModel, input_ids: torch.Tensor) -> bool:
    """Have a model make no masks if, not compiled, it makes none for one row as long as all; returns whether that is
    so.

    A window that slides needs its masks, and keeps them. Shape of `input_ids` [B, T].
    """
    plain = makes_no_masks(model, input_ids)
    if plain:
        AttentionInterface.register(WITHOUT_MASKS, attend)
        model.set_attn_implementation(WITHOUT_MASKS)
    return plain


@torch.no_grad()
def makes_no_masks(model: PreTrainedModel, input_ids: torch.Tensor) -> bool:
    """Whether a model has SDPA attend to all that stands before a token, by no mask, in one row as long as all."""
    if model.config._attn_implementation != WITH_MASKS:
        return False
    masks: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        masks.append(sdpa_mask(*args, **kwargs))
        return masks[-1]

    AttentionInterface.register(NOTED, attend)
    AttentionMaskInterface.register(NOTED, noted)
    was_training = model.training
    model.eval().set_attn_implementation(NOTED)
    try:
        with_weights(_read, model, input_ids[:1])
    finally:
        model.train(was_training).set_attn_implementation(WITH_MASKS)
    return bool(masks) and all(mask is None for mask in masks)


@contextmanager
def masks_made(model: PreTrainedModel) -> Iterator[None]:
    """Have a model make its masks for the length of a block, in which rows are filled up on the left."""
    before = model.config._attn_implementation
    if before not in (WITHOUT_MASKS, APART):
        yield
        return
    model.set_attn_implementation(WITH_MASKS)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _read(model: PreTrainedModel, input_ids: torch.Tensor) -> None:
    model.base_model(input_ids=input_ids, use_cache=False)
