"""The folder of an adapter: its weights and settings as `peft` names them, and which model they are beside.

adapter_model.safetensors    the trained matrices, and a classifier's head
adapter_config.json          rank, alpha and targets; and the base model's name
base_model.json              the base model's name, where it was found, its place, and the digests of its files
config.json                  the configuration of the base model with the adapter's head
"""

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.common.errors import ArtifactError, in_one_line, reason_of
from trainer.pretrained.parts import of_optimizer

WEIGHTS, SETTINGS, BASE = "adapter_model.safetensors", "adapter_config.json", "base_model.json"

PREFIX = "base_model.model."
"""What `peft` puts before the names of an adapter's tensors."""

DECIDE = ("config.json", "*.safetensors")
"""Files that decide what a base model computes, of those that lie beside it."""


class Base(BaseModel):
    """The model that an adapter is beside: its name as the job has it, its key if it is in the store, its files' SHA-256.

    `path` is where a folder lay: the name may be a relative one, and another command starts in another folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    origin: Literal["store", "folder", "hub"]
    key: str | None
    files: dict[str, str]
    path: str | None = None


def base_of(name: str, origin: Literal["store", "folder", "hub"], key: str | None, files: Mapping[str, str]) -> Base:
    """A base model with the digests of those of its files that count."""
    decide = [file for file in sorted(files) if any(fnmatch(file, pattern) for pattern in DECIDE) and not of_optimizer(file)]
    kept = {file: files[file] for file in decide}
    return Base(name=name, origin=origin, key=key, files=kept, path=str(Path(name).absolute()) if origin == "folder" else None)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and not a model."""
    return (folder / SETTINGS).is_file()


def read_base(folder: Path) -> Base | None:
    """The base model that an adapter's folder names; None if it was not made here. Raises `ArtifactError` if it is damaged."""
    try:
        return Base.model_validate_json((folder / BASE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ArtifactError(f"{folder / BASE} is damaged: {in_one_line(error)}") from error
    except OSError as error:
        raise ArtifactError(f"{folder / BASE} cannot be read: {reason_of(error)}") from error


def require_base(folder: Path, found: Base) -> None:
    """Raise `ArtifactError` unless an adapter's folder was trained beside this base model."""
    wanted = read_base(folder)
    if wanted is None:
        raise ArtifactError(f"{folder} holds an adapter, but no {BASE} that names its base model; take another checkpoint")
    if wanted.files == found.files:
        return
    told = "; ".join(
        f"{file}: expected {wanted.files.get(file, 'none')[:16]}, found {found.files.get(file, 'none')[:16]}"
        for file in sorted({*wanted.files, *found.files})
        if wanted.files.get(file) != found.files.get(file)
    )
    raise ArtifactError(
        f"{folder} holds an adapter of {wanted.name!r}, and {found.name!r} is another model now ({told}); put the former files "
        "back, or train anew under another name for `run`"
    )


def tensor_of(parameter: str) -> str:
    """The name of a parameter's tensor in an adapter's file, without the prefix; that of any other parameter as it is."""
    return parameter.replace(".modules_to_save.default.", ".").replace(".default.", ".")


def describe_settings(settings: Mapping[str, object]) -> str:
    """adapter_config.json: the same bytes for the same settings, as `peft` keeps names in sets."""
    plain = {name: sorted(value) if isinstance(value, set | frozenset) else value for name, value in settings.items()}
    return json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
