"""The weights of a pretrained folder, looked at by the headers of its safetensors files, which are not read whole."""

import json
from pathlib import Path

from trainer.common.errors import ConfigError
from trainer.pretrained.adapters import is_adapter
from trainer.pretrained.parts import MODEL, find_gap, find_parts
from trainer.pretrained.tensor_files import Tensor, read_file_header
from trainer.store.names import plain_name

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""What a pretrained folder keeps its weights in; nothing that would have to be unpickled."""

CONVERT = (
    "convert it where you trust it: AutoModel.from_pretrained(folder).save_pretrained(new_folder) writes model.safetensors, "
    "and the tokenizer's files go beside it"
)


def check_weights(name: str) -> None:
    """Raise `ConfigError` if a local folder holds no weights, or files of them are missing, cut short or damaged."""
    folder = Path(name)
    if not folder.is_dir():
        return
    if is_adapter(folder):
        raise ConfigError(
            f"model {name!r} is an adapter, without the weights that it was trained beside: begin with a run whose "
            "model.lora.publish is merged, or merge it (peft: merge_and_unload, then save_pretrained) and name that folder"
        )
    if parts := find_parts(folder, MODEL):  # first: a whole model beside them is of a save that they have replaced
        if gap := find_gap([tensor for part in parts for tensor in _check_file(name, part.name).items()]):
            raise ConfigError(
                f"model {name!r}: {', '.join(part.name for part in parts)} {gap}; a part is missing, or another's"
            )
    elif (folder / WEIGHTS).is_file():
        _check_file(name, WEIGHTS)
    elif (folder / INDEX).is_file():
        for file, tensors in _read_index(name).items():
            found = _check_file(name, file)
            if lacking := [tensor for tensor in tensors if tensor not in found]:
                raise ConfigError(f"pretrained model {name!r}: {file} has no {lacking[0]!r}, which {INDEX} says it holds")
    else:
        old = sorted(path.name for path in folder.glob("*.bin"))
        raise ConfigError(
            f"pretrained model {name!r} has no weights: expected {WEIGHTS} or {INDEX} beside its config.json"
            + (f". {old[0]} is pickled and is not loaded; {CONVERT}" if old else "")
        )


def weight_files(folder: Path) -> list[Path]:
    """The files of a local folder that hold its weights; none if it has none."""
    if parts := find_parts(folder, MODEL):
        return parts
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        return [folder / file for file in _read_index(str(folder))]
    return [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else []


def _check_file(name: str, file: str) -> dict[str, Tensor]:
    """The tensors of one file. Raises `ConfigError` if it is missing, cut short or damaged."""
    try:
        return read_file_header(Path(name, file))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"pretrained model {name!r}: {file} is missing or damaged ({error}); copy or download it again"
        ) from error


def _read_index(name: str) -> dict[str, list[str]]:
    """The names of the tensors that each file of a sharded model holds, by file. Raises `ConfigError`."""
    try:
        placed = json.loads(Path(name, INDEX).read_text(encoding="utf-8"))["weight_map"]
        files: dict[str, list[str]] = {}
        for tensor, file in placed.items():
            if not plain_name(str(file)).endswith(".safetensors"):
                raise ValueError(f"{file!r} is no safetensors file")
            files.setdefault(file, []).append(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"pretrained model {name!r}: {INDEX} is damaged ({type(error).__name__}: {error}); copy or download it again"
        ) from error
    return files
