"""What a checkpoint may hold of optimizer, schedule and scaler: looked at before any of it is loaded.

A checksum says that a file is the one that was written, not that what was written can be.
"""

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue

from trainer.models.tensor_files import Tensor, find_gap, of_optimizer, read_tensors
from trainer.models.weights import PREFIX, tensor_of
from trainer.store.manifest import Manifest
from trainer.store.storage import Store

OPTIMIZER = "optimizer.safetensors"


class Group(BaseModel):
    """Parameters with settings of their own, by their names in the objective; torch decides which other settings there are."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]

    params: list[str]
    lr: FiniteFloat = Field(ge=0, strict=True)


class Computed(BaseModel):
    """With how many threads, None on a GPU, and on how many ranks a checkpoint was computed."""

    model_config = ConfigDict(extra="forbid")

    threads: int | None = Field(ge=1)
    ranks: int = Field(ge=1)


class Settings(BaseModel):
    """What state.json holds beside the position."""

    model_config = ConfigDict(extra="forbid")

    optimizer: list[Group] = Field(min_length=1)
    schedule: dict[str, JsonValue]
    scaler: dict[str, JsonValue] | None
    computed: Computed | None = None


def find_misfit(store: Store, key: str, manifest: Manifest, settings: Settings) -> str | None:
    """Why the moments in a checkpoint's optimizer cannot be those of its model, or None. Raises `ArtifactError` if damaged."""
    sizes = {record.name: record.size for record in manifest.files}
    weights: list[tuple[str, Tensor]] = []
    moments: list[tuple[str, Tensor]] = []
    for name in sizes:
        if name.endswith(".safetensors"):
            (moments if of_optimizer(name) else weights).extend(read_tensors(store, f"{key}/{name}", sizes[name]).items())
    if not any(map(of_optimizer, sizes)):
        return f"{store.path(key)}/{OPTIMIZER} is not listed in its manifest"
    if gap := find_gap(weights) or find_gap(moments):
        return f"the files of {store.path(key)} {gap}"
    known = {name for group in settings.optimizer for name in group.params}
    shapes = {name.removeprefix(PREFIX): weight for name, weight in weights}
    for full, moment in moments:
        parameter = full.rpartition("/")[0]
        if parameter not in known:
            return f"{store.path(key)}/{OPTIMIZER} holds {full!r}, which is of no parameter that state.json names"
        weight = shapes.get(tensor_of(parameter.removeprefix("model.")))  # some families save weights under other names
        if weight is not None and not _fits(moment.whole, weight.whole):
            return f"{store.path(key)}/{OPTIMIZER} holds {full!r} of shape {moment.whole} for a weight of shape {weight.whole}"
    return None


def _fits(moment: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether a moment is a number, of a weight's shape, or, as Adafactor's, of its rows or columns."""
    return moment in ((), (1,)) or (
        len(moment) == len(weight) and all(m in (1, w) for m, w in zip(moment, weight, strict=True))
    )
