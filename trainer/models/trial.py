"""Try a language model before training: it must run on token ids, be deterministic, and not see the tokens it predicts.

Also test whether padding changes the outputs of a classifier.
"""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from trainer.common.errors import ConfigError, brief
from trainer.config.models import ModelConfig
from trainer.config.training import TrainingConfig
from trainer.models.attention_masks import WITH_MASKS, makes_no_masks
from trainer.models.documents import APART, positions
from trainer.models.dropout import DRAWN
from trainer.models.layers import in_mode
from trainer.models.losses import CausalLMLoss
from trainer.models.new_config import padding_hint

LENGTH = 64
"""Tokens per row of a trial, or the job's context if that is less; enough for several chunks of small models."""

CUTS = 4
"""Rows of a trial; each has another position from which on its tokens are changed."""

ROUNDING = 3e-5
"""Share of the logits' spread that counts as rounding. In a new model, later tokens that it sees change logits by 1e-3
of the spread or more.
"""

ALIKE = 0.03
"""Largest root mean square difference, as a share of the logits' spread, between equivalent computations in half
precision."""

PLACED_ALIKE = 0.1
"""Largest root mean square difference, as a share of the logits' spread, between a text's logits at two positions of a
window in half precision. If positions do not restart, the difference is over half of the spread."""

PADDED, ALONE = 32, 5
"""Tokens that a classifier's rows are padded to, and of the short texts among them."""

BY_PADDING = 1e-4
"""Share of the largest logit by which padding may change a logit in float32. New models that read padding as text
change theirs by 1e-3 or more, most others by 2e-7; a ConvBERT by 7e-6, which is treated as rounding.
"""


def tried_loss(model: PreTrainedModel, context: int) -> CausalLMLoss:
    """The model with its loss, after a trial; raises `ConfigError` if it cannot be trained on next tokens."""
    check_causal(model, context)
    try:
        return CausalLMLoss(model)
    except ConfigError:
        raise
    except Exception as error:  # architectures fail each in their own way
        raise ConfigError(f"a {model.config.model_type!r} model cannot be run in training: {brief(error)}") from error


def tried_objective(model: PreTrainedModel, options: ModelConfig, training: TrainingConfig) -> CausalLMLoss:
    """The tried model of a job with its loss, prepared for the job's settings; raises as `tried_loss`."""
    objective = tried_loss(model, training.context)
    if training.masks_documents:
        check_packed(model, training.context, "documents", "set training.document_mask to false")
        read_apart(model, training.context)
    router_logits = getattr(model.config.get_text_config(), "output_router_logits", False)
    if options.config is not None and router_logits and not objective.adds:
        raise ConfigError(
            f"model.config: output_router_logits is true, but transformers adds no router loss to that of a "
            f"{model.config.model_type!r} model, so it would have no effect; remove it"
        )
    return objective


@torch.no_grad()
def check_causal(model: PreTrainedModel, context: int) -> None:
    """Raise `ConfigError` unless earlier logits are unchanged, to rounding, when later tokens change.

    A bidirectional model sees the token that it should predict: its loss falls, but it learns nothing. The test takes
    two forward passes over a few short rows, on the model's device.
    """
    ids_BT, changed_BT, may_change_BT = _rows(model.config, min(context, LENGTH))
    with in_mode(model, training=False):
        logits, changed = _logits(model, ids_BT), _logits(model, changed_BT)

        def leaks(other: torch.Tensor) -> bool:
            return bool((other - logits).abs()[~may_change_BT].max() > ROUNDING * logits.std())

        if leaks(changed):
            raise ConfigError(_repeats_not(model) if leaks(_logits(model, ids_BT)) else _sees_ahead(model))


@torch.no_grad()
def check_repeats(model: PreTrainedModel, context: int, name: str) -> None:
    """Raise `ConfigError` if a model's logits are random in training mode, apart from an adapter's own dropout.

    `name` is the model's name in the error.
    """
    ids_BT = _rows(model.config, min(context, LENGTH))[0]
    device = model.device
    found: list[torch.Tensor] = []
    with in_mode(model, training=True):
        for part, module in model.named_modules():
            if "lora_" in part:
                module.eval()
        for seed in range(2):
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(seed)
                found.append(_logits(model, ids_BT))
    if bool((found[1] - found[0]).abs().max() > ROUNDING * found[0].std()):
        values = model.config.get_text_config().to_dict()
        shares = [(key, value) for key, value in values.items() if type(value) in (int, float) and value > 0]
        drawn = [f"{key} {value}" for key, value in shares if any(k in key for k in DRAWN)]
        cause = f": its configuration has {', '.join(drawn)}" if drawn else ""
        raise ConfigError(
            f"{name}, a {model.config.model_type!r} model, has random outputs in training that headrace cannot switch "
            f"off{cause}; this training needs a model without dropout. Set dropout and jitter to 0 in the config.json "
            "of a copy, and use that folder"
        )


@torch.no_grad()
def depends_on_padding(classifier: PreTrainedModel) -> bool:
    """Whether padding short texts on the right, to the length of a longer one, changes their logits.

    Tested on a copy that shares the weights, because some families change their computation permanently after a short
    row. Returns False for a classifier that cannot read the test rows.
    """
    config: Any = classifier.config

    def logits(ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # some models draw random numbers in evaluation mode too
            told: torch.Tensor = tried(input_ids=ids_BT, attention_mask=mask_BT).logits
        return told[: CUTS - 1, :ALONE] if told.dim() > 2 else told[: CUTS - 1]

    try:
        tried = copy.deepcopy(classifier, {id(weight): weight for weight in classifier.parameters()}).eval()
        ids_BT = _rows(config, PADDED)[0]
        mask_BT = torch.ones_like(ids_BT)
        end: Any = getattr(config, "eos_token_id", None)
        padding: Any = config.pad_token_id
        if type(end) is int and end != padding:  # BART, for example, classifies at the end token
            ids_BT[: CUTS - 1, ALONE - 1] = ids_BT[CUTS - 1, -1] = end
        alone = logits(ids_BT[: CUTS - 1, :ALONE], mask_BT[: CUTS - 1, :ALONE])
        ids_BT[: CUTS - 1, ALONE:], mask_BT[: CUTS - 1, ALONE:] = padding, 0
        return bool((logits(ids_BT, mask_BT) - alone).abs().max() > BY_PADDING * alone.abs().max())
    except Exception:  # architectures raise various errors
        return False


def check_packed(model: PreTrainedModel, context: int, texts: str, advice: str) -> None:
    """Raise `ConfigError` unless a model reads two texts in one row, with restarted positions, like separate texts.

    `texts` is the noun for them in errors, `advice` says what to do. Families differ: some mask by positions, some have
    no positions, and some carry a state from text to text.

    The row holds the same text twice. The second one's logits must not depend on the first: their gradient to its
    embeddings must be exactly 0, which holds in any type and kernel, because masked attention weights are 0. They must
    also equal the first one's logits, else positions did not restart.
    """
    kind = model.config.model_type
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ConfigError(f"a {kind!r} model accepts no positions, so {texts} cannot share a window; {advice}")
    text = _rows(model.config, min(context, LENGTH) // 2 or 1)[0][:1].to(model.device)
    places = torch.arange(text.shape[1], device=model.device)[None]
    try:
        with in_mode(model, training=False):
            first, second, gradient = _read_twice(model, text.repeat(1, 2), places.repeat(1, 2))
    except Exception as error:  # architectures fail each in their own way
        raise ConfigError(
            f"a {kind!r} model cannot be tried on two {texts} in one window: {brief(error)}; {advice}"
        ) from error
    elsewhere = (second - first).square().mean().sqrt() / first.std()
    if gradient[:, : text.shape[1]].any() or not bool(elsewhere <= PLACED_ALIKE):
        raise ConfigError(
            f"a {kind!r} model reads a text differently after another one in its window, though positions restart: "
            f"{texts} would see each other; {advice}"
        )


def read_apart(model: PreTrainedModel, context: int) -> bool:
    """Make a model attend to each text of a row separately, without a mask, if results agree; returns whether it does.

    Tested, because families pass different arguments to their attention, and a sliding window needs its masks. With
    attention dropout, which the faster kernels do not support, it would not be faster.
    """
    ids_BT = _rows(model.config, min(context, LENGTH))[0].to(model.device)
    width = ids_BT.shape[1]
    # Full row length: a sliding window builds a mask only for rows longer than itself.
    whole = ids_BT[:1].repeat(1, -(-context // width))[:, :context]
    if width < 2 or _drops_attention(model.config) or not makes_no_masks(model, whole):
        return False
    cut = width // 3 or 1
    places_BT = torch.cat([torch.arange(cut), torch.arange(width - cut)]).to(model.device).repeat(len(ids_BT), 1)
    try:
        with in_mode(model, training=False):
            masked = _packed_logits(model, ids_BT, places_BT)
            model.set_attn_implementation(APART)
            apart = _packed_logits(model, ids_BT, places_BT)
        same = bool((apart - masked).square().mean().sqrt() <= ALIKE * masked.std())
    except (TypeError, ValueError, RuntimeError):  # it does not pass on the ends of texts, or needs unsupported options
        same = False
    if not same:
        model.set_attn_implementation(WITH_MASKS)
    return same


def _drops_attention(config: PretrainedConfig) -> bool:
    text = config.get_text_config()
    return any(getattr(text, name, 0) for name in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"))


@contextmanager
def reading_apart(model: PreTrainedModel, context: int) -> Iterator[None]:
    """Apply `read_apart` within the block."""
    read_apart(model, context)
    try:
        yield
    finally:
        if model.config._attn_implementation == APART:
            model.set_attn_implementation(WITH_MASKS)


@torch.no_grad()
def _packed_logits(model: PreTrainedModel, ids_BT: torch.Tensor, position_ids_BT: torch.Tensor) -> torch.Tensor:
    """Logits of rows with several texts, in float32, of shape [B, T, V]."""
    logits: torch.Tensor = model(input_ids=ids_BT, **positions(model, position_ids_BT), use_cache=False).logits
    return logits.float()


@torch.enable_grad()
def _read_twice(
    model: PreTrainedModel, ids_BT: torch.Tensor, position_ids_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of both halves of a row, and the gradient of the second to the embeddings, of shape [B, T, H]."""
    embedded: list[torch.Tensor] = []

    def follow(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1].clone()  # a copy, as a model may modify it in place

    hook = model.get_input_embeddings().register_forward_hook(follow)
    try:
        logits = model(input_ids=ids_BT, position_ids=position_ids_BT, use_cache=False).logits.float()
    finally:
        hook.remove()
    first, second = logits.chunk(2, dim=1)
    (gradient,) = torch.autograd.grad(second.square().sum(), embedded)
    return first.detach(), second.detach(), gradient


def _rows(config: PretrainedConfig, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random tokens, the same changed from each row's cut on, and a mask of the changed tokens; all of shape [B, T]."""
    text = config.get_text_config()
    special = {
        value
        for each in (config, text)
        for name, value in vars(each).items()
        if "_token" in name and type(value) is int
    }
    ordinary = torch.tensor([number for number in range(text.vocab_size) if number not in special])
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(ordinary), (CUTS, length), generator=generator)
    shifts = torch.randint(1, max(2, len(ordinary)), (CUTS, length), generator=generator)
    cuts = torch.linspace(1, length - 1, CUTS).round().long()
    after = torch.arange(length) >= cuts[:, None]
    return ordinary[places], ordinary[(places + shifts * after) % len(ordinary)], after


def _logits(model: PreTrainedModel, ids_BT: torch.Tensor) -> torch.Tensor:
    """Logits in float32, of shape [B, T, V]."""
    kind = model.config.model_type
    try:
        logits: torch.Tensor = model(input_ids=ids_BT.to(model.device), use_cache=False).logits.float().cpu()
    except Exception as error:  # architectures fail each in their own way
        hint = padding_hint(kind, model.config.get_text_config().pad_token_id)
        raise ConfigError(f"a {kind!r} model cannot be run on token ids alone: {brief(error)}{hint}") from error
    if logits.shape[:-1] != ids_BT.shape:
        raise ConfigError(
            f"a {kind!r} model gives logits of shape {tuple(logits.shape)} for tokens of shape {tuple(ids_BT.shape)}; "
            "expected one row of logits per token"
        )
    if not torch.isfinite(logits).all():
        raise ConfigError(f"the {kind!r} model's logits are not finite before training; its weights are unusable")
    return logits


def _sees_ahead(model: PreTrainedModel) -> str:
    config = model.config
    setting = next((name for name in ("is_decoder", "causal") if getattr(config, name, None) is False), None)
    advice = f"set {setting} to true in its configuration, or " if setting else ""
    return (
        f"a {config.model_type!r} model as configured sees the tokens that it should predict: changing a later token "
        f"changes earlier logits; {advice}use a model that reads from left to right, such as gpt2, llama or mamba"
    )


def _repeats_not(model: PreTrainedModel) -> str:
    return (
        f"a {model.config.model_type!r} model as configured gives different logits each time for the same tokens, so "
        "results are not reproducible; switch off randomness outside training, or use another model"
    )
