"""Masked language models: any that `transformers` knows, and the loss of the tokens that are hidden."""

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from trainer.common.errors import ConfigError, brief
from trainer.config.models import ModelConfig
from trainer.models.causal import build_model, load_model
from trainer.models.losses import IGNORED, cross_entropies
from trainer.models.new import padding_hint

KIND = AutoModelForMaskedLM


class MaskedLMLoss(nn.Module):
    """A masked language model together with its loss, so that both are wrapped, cast and compiled as one."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum over the batch of -log p(hidden token), in nats; shapes [B, T], and [B, T], `IGNORED` where none is hidden."""
        return masked_losses(self.model, input_ids, labels)[0].sum()


def masked_losses(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log p of each hidden token in nats, float32, and whether it is the likeliest; each of shape [hidden tokens]."""
    logits_BTV = model(input_ids=input_ids, attention_mask=attention_mask).logits
    hidden = labels != IGNORED
    logits_NV, labels_N = logits_BTV[hidden], labels[hidden]
    return cross_entropies(logits_NV[None], labels_N[None]), logits_NV.detach().argmax(dim=-1) == labels_N


def build_masked(options: ModelConfig, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A float32 model: pretrained, or new with weights decided by the seed. Raises `ConfigError` if it cannot be built."""
    return build_model(options, config, seed, KIND)


def load_masked(path: str, attention: str | None = None) -> PreTrainedModel:
    """A float32 model from a folder, or a pretrained name. Raises `ConfigError`."""
    return load_model(path, attention, kind=KIND)


def tried_masked(model: PreTrainedModel, context: int, mask_id: int) -> MaskedLMLoss:
    """The model with its loss, after a trial on a window. Raises `ConfigError` if it cannot be run, or sees one side only."""
    vocab_size = model.config.get_text_config().vocab_size
    ids = torch.arange(context).remainder(vocab_size)[None].to(model.device)
    ids[0, 0] = mask_id
    changed = ids.clone()
    changed[0, 1] = (ids[0, 1] + 1) % vocab_size
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits, others = (model(input_ids=each).logits[0, 0].float() for each in (ids, changed))
    except Exception as error:  # architectures fail each in their own way
        kind = model.config.model_type
        hint = padding_hint(kind, model.config.get_text_config().pad_token_id)
        raise ConfigError(
            f"a {kind!r} model cannot be run on windows of {context} tokens (training.context): {brief(error)}{hint}"
        ) from error
    finally:
        model.train(was_training)
    if torch.equal(logits, others):
        raise ConfigError(
            f"a {model.config.model_type!r} model as configured does not see what follows a hidden token; set is_decoder to "
            "false in its configuration, or take a model that reads in both directions"
        )
    return MaskedLMLoss(model)
