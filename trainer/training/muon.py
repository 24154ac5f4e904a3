"""Muon (Jordan et al. 2024) for the matrices of a model's blocks, and AdamW for all else, as one optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from trainer.common.errors import ConfigError
from trainer.config.training import MuonConfig
from trainer.models.blocks import find_blocks

MARK = "ns_steps"
"""A setting that only Muon's groups of parameters have."""


class Muon(torch.optim.Muon):
    """torch's, for weights of which some are stored with one row an input, not an output.

    Jordan's rate grows with outputs / inputs, for which torch takes rows / columns: it is given such weights transposed, as
    views of what it steps.
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
    """Both optimizers over one list of groups, AdamW's first, and one state: each parameter is of one of them."""

    def __init__(self, adamw: torch.optim.AdamW, muon: torch.optim.Muon) -> None:
        self._adamw, self._muon = adamw, muon
        super().__init__([*adamw.param_groups, *muon.param_groups], {"lr": adamw.defaults["lr"]})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step with both."""
        assert closure is None, "the loss is computed by the loop"
        self._adamw.step()
        self._muon.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called where a state is loaded, which replaces groups and state by others."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        for part, of_muon in ((self._adamw, False), (self._muon, True)):
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if (MARK in group) == of_muon]


def make_muon(
    model: nn.Module,
    matrices: set[nn.Parameter],
    others: torch.optim.AdamW,
    options: MuonConfig,
    learning_rate: float,
    weight_decay: float,
) -> MuonWithAdamW:
    """Muon for some matrices of a model, beside an AdamW of all other parameters."""
    turned = {module.weight for module in model.modules() if isinstance(module, Conv1D)}
    muon = Muon(
        [each for each in model.parameters() if each in matrices],
        turned if options.adjust_lr == "original" else set(),  # the other adjustment is the same for both
        lr=options.learning_rate or learning_rate, weight_decay=weight_decay, momentum=options.momentum,
        nesterov=options.nesterov, ns_steps=options.ns_steps, adjust_lr_fn=options.adjust_lr,
    )  # fmt: skip
    return MuonWithAdamW(others, muon)


def block_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The matrices of a model's blocks, without embeddings; what is outside of them, the head too, is none of them.

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
            "training.optimizer is muon, which is for the weight matrices of a model's repeated blocks, but none are trained "
            "of this one; set training.optimizer to adamw"
        )
    return found
