"""Pointers: small files in a run's folder that name one of its checkpoints."""

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.common.errors import ArtifactError
from trainer.records.seals import read_sealed, remedy_of, write_sealed
from trainer.store.places import CHECKPOINTS
from trainer.store.plain_names import Count
from trainer.store.storage import Store


class Pointer(BaseModel):
    """The checkpoint that is named, by its place in the run's folder and by its step, with the scores of that step."""

    model_config = ConfigDict(strict=True, extra="forbid")

    checkpoint: str
    step: Count
    scores: dict[str, float] | None


def folder_name(step: int) -> str:
    """Where the checkpoint of a step is in its run's folder."""
    return f"{CHECKPOINTS}/step-{step:08d}"


def read_pointer(store: Store, key: str) -> Pointer | None:
    """What a pointer names; None if there is none. Raises `ArtifactError` if it is damaged."""
    found = read_sealed(store, key)
    if found is None:
        return None
    try:
        pointer = Pointer.model_validate(found)
    except ValidationError as error:
        raise ArtifactError(f"{store.path(key)} is damaged: it names no checkpoint and step; {remedy_of(key)}") from error
    if pointer.checkpoint != folder_name(pointer.step):
        raise ArtifactError(
            f"{store.path(key)} is damaged: it names {pointer.checkpoint} for step {pointer.step}; {remedy_of(key)}"
        )
    return pointer


def write_pointer(store: Store, key: str, step: int, scores: dict[str, float] | None) -> None:
    """Let a pointer name the checkpoint of a step."""
    write_sealed(store, key, Pointer(checkpoint=folder_name(step), step=step, scores=scores).model_dump())
