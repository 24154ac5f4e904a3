"""A model without its weights, and a function that reads rows of each weight, for ranks that each hold a part.

A new model's weights are drawn block by block, by the same functions and in the same order as for a whole model, and a
rank keeps its own rows. So the values are the same, and at most one block and the weights outside blocks are in memory
at a time. Weights in files are read by each rank.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import init_empty_weights
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from trainer.common.errors import brief
from trainer.models.causal import made_ready, model_from, stops_at_turns, take_generation_config
from trainer.models.layers import find_blocks
from trainer.models.pretrained import load_config
from trainer.models.tensor_rows import Converted, Tensors, own_tensors
from trainer.models.weights import check_weights, is_adapter, weight_files

log = logging.getLogger(__name__)


Shape = tuple[int, ...]

Rows = Callable[[int], tuple[int, int]]
"""Maps a number of rows to the first row of this rank and the one after its last."""


class Outline(NamedTuple):
    """A model on the device `meta`; `read` returns this rank's rows of a parameter by name, or a whole buffer."""

    model: PreTrainedModel
    read: Callable[[str], torch.Tensor]


def outline_new(config: PretrainedConfig, attention: str | None, seed: int, rows: Rows) -> Outline | None:
    """A new model with the same weights as `build_model`, of which this rank holds some rows.

    None if its family initialises some weights only in its modules' constructors: then it must be built whole.
    """
    drawn = _Drawn(rows)
    torch.manual_seed(seed)
    with _initialised_by(drawn.initialise), init_empty_weights(include_buffers=False), _DrawAnyway():  # type: ignore[no-untyped-call]
        model = model_from(config, attention, AutoModelForCausalLM)
    model.tie_weights()
    found = {name: drawn.taken.get(parameter) for name, parameter in model.named_parameters()}
    if lacking := [name for name, values in found.items() if values is None or values.isnan().any()]:
        log.warning("%s and %d other weights cannot be initialised block by block", lacking[0], len(lacking) - 1)
        return None
    ready = made_ready(model)
    buffers = {name: tensor for name, tensor in own_tensors(ready).items() if name not in found}
    return Outline(ready, lambda name: buffers[name] if name in buffers else found[name])  # type: ignore[arg-type, return-value]


def outline_files(path: str, attention: str | None, rows: Rows) -> Outline | None:
    """A causal model with weights in a local folder; None for an adapter, and as for `outline_folder`."""
    if is_adapter(Path(path)):
        return None

    def build() -> PreTrainedModel:
        return made_ready(model_from(load_config(path), attention, AutoModelForCausalLM))

    return outline_folder(path, rows, build)


def outline_folder(path: str, rows: Rows, build: Callable[[], PreTrainedModel]) -> Outline | None:
    """A model built by a function, with weights in a local folder.

    None if the files' tensors do not match the model even after transformers' conversions, tied weights differ, or
    weights are quantised: then transformers must load the model.
    """
    check_weights(path)
    with _initialised_by(lambda model: None), init_empty_weights(include_buffers=False):
        model = build()
    if getattr(model.config, "quantization_config", None) is not None:
        return None
    model.tie_weights()
    take_generation_config(model, path)
    wanted = {name: tuple(each.shape) for name, each in own_tensors(model).items()}
    tensors = _find_tensors(Tensors(weight_files(Path(path))), model, wanted)
    if tensors is None:
        return None
    shapes = tensors.shapes()
    parameters = dict(model.named_parameters(remove_duplicate=False))

    def read(name: str) -> torch.Tensor:
        divided = name in parameters and parameters[name].dim() > 0
        return tensors.read(name, *rows(shapes[name][0])) if divided else tensors.read(name)

    tied = {name: source for name, source in model.all_tied_weights_keys.items() if name in shapes}
    if any(
        shapes[name] != shapes[source] or not torch.equal(read(name), read(source)) for name, source in tied.items()
    ):
        return None
    return Outline(model, read)


def _find_tensors(tensors: Tensors, model: PreTrainedModel, wanted: Mapping[str, Shape]) -> Tensors | Converted | None:
    """The source of the wanted tensors: the files, or their conversion; None if neither provides them."""
    if _gives(tensors.shapes(), wanted):
        return tensors
    converted = Converted(tensors, model)
    try:
        return converted if _gives(converted.shapes(), wanted) else None
    except Exception as error:  # conversions raise various errors
        log.warning("the tensors of a %r model cannot be converted: %s", model.config.model_type, brief(error))
        return None


def _gives(shapes: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> bool:
    return all(shapes.get(name) == shape for name, shape in wanted.items())


@contextmanager
def _initialised_by(initialise: Callable[[PreTrainedModel], None]) -> Iterator[None]:
    """Within the block, initialise models by this function instead of `init_weights`, which also ties weights."""
    original = PreTrainedModel.init_weights
    PreTrainedModel.init_weights = lambda model: initialise(model)  # type: ignore[method-assign]  # to be bound to it
    try:
        yield
    finally:
        PreTrainedModel.init_weights = original  # type: ignore[method-assign]


class _DrawAnyway(TorchDispatchMode):
    """Draw the same random numbers for tensors on `meta` as for real ones, so that later draws are the same."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            func(torch.empty(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:], **(kwargs or {}))
        return result


class _Drawn:
    """This rank's rows of a new model's weights, by the parameters on `meta`."""

    def __init__(self, rows: Rows) -> None:
        self.taken: dict[nn.Parameter, torch.Tensor] = {}
        self._rows = rows

    @torch.no_grad()
    def initialise(self, model: PreTrainedModel) -> None:
        """Like `PreTrainedModel.initialize_weights`, with memory for one block at a time."""
        blocks = set(find_blocks(model))
        with self._filled(module for module in _outside(model, blocks)):
            self._walk(model, model, blocks)

    def _walk(self, module: nn.Module, owner: PreTrainedModel, blocks: set[nn.Module]) -> None:
        if module in blocks:
            with self._filled(module.modules()):
                self._walk(module, owner, blocks - {module})
            return
        for child in module.children():
            self._walk(child, child if isinstance(child, PreTrainedModel) else owner, blocks)
        owner._initialize_weights(module)

    @contextmanager
    def _filled(self, modules: Any) -> Iterator[None]:
        """Within the block, allocate the modules' uninitialised parameters; then keep this rank's rows of them."""
        places = [
            (module, name, parameter)
            for module in modules
            if not getattr(module, "_is_hf_initialized", False)
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        whole = {
            parameter: nn.Parameter(
                torch.full(parameter.shape, torch.nan, dtype=parameter.dtype), parameter.requires_grad
            )
            for _, _, parameter in places
        }
        for module, name, parameter in places:
            module._parameters[name] = whole[parameter]
        yield
        for module, name, parameter in places:
            module._parameters[name] = parameter
        for parameter, values in whole.items():
            parameter.__dict__.update(values.__dict__)
            start, end = self._rows(len(values)) if values.dim() else (0, 0)
            self.taken[parameter] = values.detach()[start:end].clone() if values.dim() else values.detach().clone()


def _outside(module: nn.Module, blocks: set[nn.Module]) -> Iterator[nn.Module]:
    """The modules of a model outside its blocks."""
    if module not in blocks:
        yield module
        for child in module.children():
            yield from _outside(child, blocks)


def outline_answering(folder: str, attention: str | None, details: dict[str, Any], rows: Rows) -> Outline | None:
    """The outline of a chat model that stops at the end of a turn; None as for `outline_files`."""
    outline = outline_files(folder, attention, rows)
    if outline is not None:
        stops_at_turns(outline.model, folder, details)
    return outline
