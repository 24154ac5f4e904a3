"""Check the weights of a pretrained folder or adapter before a library loads them.

An adapter's folder holds:

adapter_model.safetensors    the trained matrices, and a classifier's head
adapter_config.json          rank, alpha and targets; and the base model's name
base_model.json              the base model's name, origin and path, and the digests of its files
config.json                  the configuration of the base model with the adapter's head
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.common.errors import ArtifactError, ConfigError, in_one_line, reason_of
from trainer.common.transient import is_transient
from trainer.models.tensor_files import MODEL, Tensor, find_gap, find_parts, read_file_header
from trainer.store.names import plain_name

ADAPTER_WEIGHTS, SETTINGS, BASE = "adapter_model.safetensors", "adapter_config.json", "base_model.json"

PREFIX = "base_model.model."
"""The prefix that `peft` adds to the names of an adapter's tensors."""


class Base(BaseModel):
    """The base model of an adapter: its name in the job, its key if it is in the store, its files' SHA-256.

    `path` is the absolute path of a folder, because `name` may be relative to another working directory.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    origin: Literal["store", "folder", "hub"]
    key: str | None
    files: dict[str, str]
    path: str | None = None


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a whole model."""
    return (folder / SETTINGS).is_file()


def read_base(folder: Path) -> Base | None:
    """Read the base model of an adapter; None if headrace did not write the adapter.

    Raises `ArtifactError` if the record is damaged.
    """
    try:
        return Base.model_validate_json((folder / BASE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ArtifactError(f"{folder / BASE} is damaged: {in_one_line(error)}") from error
    except OSError as error:
        raise ArtifactError(f"{folder / BASE} cannot be read: {reason_of(error)}") from error


def require_base(folder: Path, found: Base) -> None:
    """Raise `ArtifactError` unless an adapter was trained with this base model."""
    wanted = read_base(folder)
    if wanted is None:
        raise ArtifactError(f"{folder} holds an adapter, but no {BASE} with its base model; use another checkpoint")
    if wanted.files == found.files:
        return
    changes = "; ".join(
        f"{file}: expected {wanted.files.get(file, 'none')[:16]}, found {found.files.get(file, 'none')[:16]}"
        for file in sorted({*wanted.files, *found.files})
        if wanted.files.get(file) != found.files.get(file)
    )
    raise ArtifactError(
        f"{folder} holds an adapter of {wanted.name!r}, but the files of {found.name!r} have changed ({changes}); "
        "restore the former files, or train again under another name for `run`"
    )


def tensor_of(parameter: str) -> str:
    """The name of a parameter's tensor in an adapter's file, without the prefix; other names are unchanged."""
    return parameter.replace(".modules_to_save.default.", ".").replace(".default.", ".")


def describe_settings(settings: Mapping[str, object]) -> str:
    """The content of adapter_config.json, with sorted names, because `peft` keeps them in unordered sets."""
    plain = {name: sorted(value) if isinstance(value, set | frozenset) else value for name, value in settings.items()}
    return json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Files with the weights of a pretrained folder; neither needs unpickling."""

CONVERT = (
    "if you trust it, convert it: AutoModel.from_pretrained(folder).save_pretrained(new_folder) writes "
    "model.safetensors; copy the tokenizer's files to the new folder"
)


def check_weights(name: str) -> None:
    """Raise `ConfigError` if a folder holds no weights, or weight files are missing, truncated or damaged."""
    folder = Path(name)
    if is_adapter(folder):
        raise ConfigError(
            f"model {name!r} is an adapter without its base model's weights: use a run with model.lora.publish: "
            "merged, or merge it (peft: merge_and_unload, then save_pretrained) and use that folder"
        )
    if parts := find_parts(folder, MODEL):  # checked first: a whole model beside them is from an earlier save
        if gap := find_gap([tensor for part in parts for tensor in _check_file(name, part.name).items()]):
            raise ConfigError(
                f"model {name!r}: {', '.join(part.name for part in parts)} {gap}; a part is missing or of another model"
            )
    elif (folder / WEIGHTS).is_file():
        _check_file(name, WEIGHTS)
    elif (folder / INDEX).is_file():
        for file, tensors in _read_index(name).items():
            found = _check_file(name, file)
            if lacking := [tensor for tensor in tensors if tensor not in found]:
                raise ConfigError(
                    f"pretrained model {name!r}: {file} has no {lacking[0]!r}, which {INDEX} lists for it"
                )
    else:
        old = sorted(path.name for path in folder.glob("*.bin"))
        raise ConfigError(
            f"pretrained model {name!r} has no weights: expected {WEIGHTS} or {INDEX} beside its config.json"
            + (f". {old[0]} is pickled and is not loaded; {CONVERT}" if old else "")
        )


def not_loaded(report: dict[str, Any]) -> list[str]:
    """The weights that the files lack, or hold with another shape, by transformers' loading report."""
    return sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a local folder, if any."""
    if parts := find_parts(folder, MODEL):
        return parts
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        return [folder / file for file in _read_index(str(folder))]
    return [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else []


def _check_file(name: str, file: str) -> dict[str, Tensor]:
    """The tensors of one file; raises `ConfigError` if it is missing, truncated or damaged."""
    try:
        return read_file_header(Path(name, file))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"pretrained model {name!r}: {file} is missing or damaged ({error}); copy or download it again",
            is_transient(error),
        ) from error


def _read_index(name: str) -> dict[str, list[str]]:
    """The names of the tensors in each file of a sharded model, by file; raises `ConfigError` if damaged."""
    try:
        placed = json.loads(Path(name, INDEX).read_text(encoding="utf-8"))["weight_map"]
        files: dict[str, list[str]] = {}
        for tensor, file in placed.items():
            if not plain_name(str(file)).endswith(".safetensors"):
                raise ValueError(f"{file!r} is not a safetensors file")
            files.setdefault(file, []).append(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"pretrained model {name!r}: {INDEX} is damaged ({type(error).__name__}: {error}); copy or download it "
            "again"
        ) from error
    return files
