"""Read rows of tensors from safetensors files, and convert tensors if the files hold an older form.

transformers defines for each family how tensors in files are converted (conversion_mapping.py), and converts a whole
model when it loads it. This module converts one tensor at a time, when it is read.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from trainer.common.errors import ArtifactError
from trainer.common.transient import is_transient
from trainer.models.tensor_files import ROW_RANGES, Tensor, find_gap, read_file_header

MOST_OPEN = 64
"""Most files mapped at a time: a model may have thousands, and mapped pages that were read count as used memory."""


class RowRange(NamedTuple):
    """Consecutive rows of a tensor: the number of the first, and the shape of the whole tensor."""

    start: int
    whole: tuple[int, ...]


def rows_of(rank: int, ranks: int, rows: int) -> tuple[int, int]:
    """A rank's first row, and the one after its last, as FSDP divides them; the last ranks may have fewer or none."""
    each = -(-rows // ranks)
    return min(rank * each, rows), min((rank + 1) * each, rows)


class Piece(NamedTuple):
    """A file that holds rows of a tensor."""

    file: Path
    tensor: Tensor


def write_part(path: Path, tensors: Mapping[str, torch.Tensor], row_ranges: Mapping[str, RowRange]) -> None:
    """Write a part's tensors; `row_ranges` describes those that are not whole."""
    entries = {name: [row_range.start, list(row_range.whole)] for name, row_range in sorted(row_ranges.items())}
    # A single entry: the library writes several in arbitrary order, but equal parts must have equal bytes.
    save_file(dict(tensors), path, metadata={ROW_RANGES: json.dumps(entries)})


class Tensors:
    """The tensors of several files by name, opened to read rows of them; the files may be parts."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the headers; raises `ArtifactError` if a file is damaged, or tensors are incomplete."""
        self._pieces: dict[str, list[Piece]] = {}
        self._open: dict[Path, Any] = {}
        paths = list(files)
        for path in paths:
            for name, tensor in _read_header(path).items():
                self._pieces.setdefault(name, []).append(Piece(path, tensor))
        if gap := find_gap((name, piece.tensor) for name, pieces in self._pieces.items() for piece in pieces):
            raise ArtifactError(f"{', '.join(map(str, paths))} {gap}; a part is missing or of another checkpoint")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each whole tensor."""
        return {name: pieces[0].tensor.whole for name, pieces in self._pieces.items()}

    def size(self, name: str) -> int:
        """The bytes of a whole tensor."""
        return math.prod(self._pieces[name][0].tensor.whole) * self.read(name, 0, 0).element_size()

    def read(self, name: str, start: int = 0, end: int | None = None) -> torch.Tensor:
        """The rows `start` to `end` (exclusive) of a tensor, by default all, from the files that hold them."""
        pieces = self._pieces[name]
        if not pieces[0].tensor.whole:
            return self._file(pieces[0].file).get_tensor(name)  # type: ignore[no-any-return]
        last = pieces[0].tensor.whole[0] if end is None else end
        found = [
            self._slice(
                name,
                piece,
                max(0, start - piece.tensor.start),
                min(last - piece.tensor.start, piece.tensor.shape[0]),
            )
            for piece in sorted(pieces, key=lambda piece: piece.tensor.start)
            if piece.tensor.start < last and piece.tensor.start + piece.tensor.shape[0] > start
        ]
        if not found:
            return self._slice(name, pieces[0], 0, 0)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _slice(self, name: str, piece: Piece, start: int, end: int) -> torch.Tensor:
        return self._file(piece.file).get_slice(name)[start:end]  # type: ignore[no-any-return]

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            if len(self._open) == MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[path] = safe_open(path, framework="pt")
        return self._open[path]


def _read_header(path: Path) -> dict[str, Tensor]:
    try:
        return read_file_header(path)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} is missing or damaged ({error})", is_transient(error)) from error


class Converted:
    """The tensors of files by the names that they have in a model; the interface of `Tensors`."""

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
        shapes_held = self._tensors.shapes()
        made = {
            name: self._make(name, lambda key: torch.empty(shapes_held[key], device="meta")) for name in self._made_of
        }
        renamed = {name: shapes_held[key] for name, key in self._renamed.items()}
        return renamed | {name: tuple(tensor.shape) for name, tensor in made.items()}

    def read(self, name: str, start: int = 0, end: int | None = None) -> torch.Tensor:
        """The rows `start` to `end` (exclusive) of a tensor, by default all; a converted one is read whole."""
        if name in self._renamed:
            return self._tensors.read(self._renamed[name], start, end)
        whole = self._make(name, self._tensors.read)
        return whole[start:end] if whole.dim() else whole

    def _make(self, name: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Convert a tensor from its source tensors in the files."""
        parts = self._made_of[name]
        converter: Any = deepcopy(self._converters[parts[0][1]])
        for key, pattern in parts:
            converter.add_tensor(name, key, pattern, read(key))
        made = converter.convert(name, model=self._model, config=self._model.config)[name]
        whole: torch.Tensor = made[0] if isinstance(made, list) else made
        return whole


def own_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The parameters and saved buffers of a model; of tied parameters, only the one to which the others are tied."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in tied}
