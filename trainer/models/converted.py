"""The tensors of a model from files that hold them in another form: under other names, or each expert by itself.

transformers says for each family how its files become its tensors (conversion_mapping.py), and converts a whole model while it
loads it. Here it is done for one tensor at a time, when that is read.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from trainer.pretrained.opened import Tensors


class Converted:
    """The tensors of some files by the names that they have in a model; read as those of `Tensors`."""

    def __init__(self, tensors: Tensors, model: PreTrainedModel) -> None:
        mapping = get_model_conversion_mapping(model)
        renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        converters = [each for each in mapping if isinstance(each, WeightConverter)]
        known = model.state_dict()
        self._tensors, self._model = tensors, model
        self._converters = {pattern: each for each in converters for pattern in each.source_patterns}
        self._renamed: dict[str, str] = {}
        self._made_of: dict[str, list[tuple[str, str]]] = {}
        for key in sorted(tensors.shapes(), key=dot_natural_key):
            name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
            if name not in known and key in known:
                self._renamed[key] = key
            elif pattern is None:
                self._renamed[name] = key
            else:
                self._made_of.setdefault(name, []).append((key, pattern))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        held = self._tensors.shapes()
        made = {name: self._make(name, lambda key: torch.empty(held[key], device="meta")) for name in self._made_of}
        renamed = {name: held[key] for name, key in self._renamed.items()}
        return renamed | {name: tuple(tensor.shape) for name, tensor in made.items()}

    def read(self, name: str, start: int = 0, end: int | None = None) -> torch.Tensor:
        """The rows of a tensor from one to before another, or all of it; what is converted is read whole for that."""
        if name in self._renamed:
            return self._tensors.read(self._renamed[name], start, end)
        whole = self._make(name, self._tensors.read)
        return whole[start:end] if whole.dim() else whole

    def _make(self, name: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """A tensor from those that it consists of in the files."""
        parts = self._made_of[name]
        converter: Any = deepcopy(self._converters[parts[0][1]])
        for key, pattern in parts:
            converter.add_tensor(name, key, pattern, read(key))
        made = converter.convert(name, model=self._model, config=self._model.config)[name]
        whole: torch.Tensor = made[0] if isinstance(made, list) else made
        return whole
