"""Checkpoints: their content, finding a run's newest intact one, and setting damaged ones aside.

A checksum shows that a file is unchanged, not that its content is possible, so both are checked.

    checkpoints/step-00000100/   model files as `save_pretrained` writes them, tokenizer, optimizer, state.json
    checkpoint-last              points to the newest committed one, and moves only after the commit; for people and
                                 tools: resuming reads the folders themselves, and
                                 reports if the one it points to is lost
    checkpoint-best              points to the one with the best validation figure: the loss, or the job's choice
    epochs/epoch-0001-step-00000100-loss-4.1234
                                 points to the one kept for an epoch

The generator state of dropout is not saved: it follows from seed, attempt and rank. Nothing is unpickled.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, ValidationError

from trainer.common.errors import ArtifactError, StorageError, in_one_line
from trainer.models.tensor_files import Tensor, find_gap, of_optimizer, read_tensors
from trainer.models.weights import PREFIX, tensor_of
from trainer.records.evaluations import Criterion
from trainer.records.sealed import read_listed, read_pointer, write_pointer
from trainer.records.shapes import folder_name
from trainer.store.artifact_files import find_damage, listed_names
from trainer.store.manifest import MANIFEST, Manifest, fingerprint, read_manifest
from trainer.store.names import CHECKPOINT_KIND, CHECKPOINTS, EPOCHS, LAST, Count
from trainer.store.storage import Store

log = logging.getLogger(__name__)


OPTIMIZER = "optimizer.safetensors"


class Group(BaseModel):
    """Parameters with their own settings, by their names in the objective; further settings depend on torch."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]

    params: list[str]
    lr: FiniteFloat = Field(ge=0, strict=True)


class Computed(BaseModel):
    """The number of threads (None on a GPU) and ranks with which a checkpoint was computed."""

    model_config = ConfigDict(extra="forbid")

    threads: int | None = Field(ge=1)
    ranks: int = Field(ge=1)


class Settings(BaseModel):
    """The content of state.json besides the position."""

    model_config = ConfigDict(extra="forbid")

    optimizer: list[Group] = Field(min_length=1)
    schedule: dict[str, JsonValue]
    scaler: dict[str, JsonValue] | None
    computed: Computed | None = None


def find_optimizer_mismatch(store: Store, key: str, manifest: Manifest, settings: Settings) -> str | None:
    """Why a checkpoint's optimizer does not fit its model, or None. Raises `ArtifactError` if a file is damaged."""
    sizes = {record.name: record.size for record in manifest.files}
    weights: list[tuple[str, Tensor]] = []
    moments: list[tuple[str, Tensor]] = []
    for name in sizes:
        if name.endswith(".safetensors"):
            (moments if of_optimizer(name) else weights).extend(
                read_tensors(store, f"{key}/{name}", sizes[name]).items()
            )
    if not any(map(of_optimizer, sizes)):
        return f"{store.path(key)}/{OPTIMIZER} is not listed in its manifest"
    if gap := find_gap(weights) or find_gap(moments):
        return f"the files of {store.path(key)} {gap}"
    known = {name for group in settings.optimizer for name in group.params}
    shapes = {name.removeprefix(PREFIX): weight for name, weight in weights}
    for full, moment in moments:
        parameter = full.rpartition("/")[0]
        if parameter not in known:
            return f"{store.path(key)}/{OPTIMIZER} holds {full!r}, which belongs to no parameter in state.json"
        weight = shapes.get(tensor_of(parameter.removeprefix("model.")))  # some families save weights under other names
        if weight is not None and not _fits(moment.whole, weight.whole):
            return (
                f"{store.path(key)}/{OPTIMIZER} holds {full!r} of shape {moment.whole} for a weight of shape "
                f"{weight.whole}"
            )
    return None


def _fits(moment: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether a moment is a scalar, has a weight's shape, or (Adafactor) the shape of its rows or columns."""
    return moment in ((), (1,)) or (
        len(moment) == len(weight) and all(m in (1, w) for m, w in zip(moment, weight, strict=True))
    )


STEP = re.compile(r"step-(\d{8,})")
"""The name of a checkpoint's folder; folders that are set aside have other names."""

EPOCH = re.compile(r"epoch-\d+-step-(\d+)(-.*)?")
"""The name of the pointer to an epoch's checkpoint."""

EndedEpoch = Callable[[int], int | None]
"""Returns the epoch that ends at a step, counted from 1, or None."""

STATE = "state.json"
STATE_NAME = re.compile(r"state(-[0-9a-f]{16})?\.json")
"""The name of a checkpoint's state file: for a sharded model, it contains a digest of the content, like the parts."""


class TrainState(BaseModel):
    """The position of a run. `attempts` counts global batches read, `step` those that changed the weights.

    `scores` are the validation figures of this very step; `worse` counts the evaluations since the best one. An
    `unmeasured` step was saved when its evaluation was interrupted: it is evaluated when training continues.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    step: Count = 0
    attempts: Count = 0
    scores: dict[str, float] | None = None
    best_figure: str | None = None
    best_meaning: str | None = None
    best_score: FiniteFloat | None = None
    best_step: Count | None = None
    worse: Count = 0
    unmeasured: bool = Field(default=False, exclude_if=lambda value: not value)

    def judge(self, scores: dict[str, float], criterion: Criterion) -> None:
        """Record scores of this step. NaN is never the best; without the deciding figure, nothing is judged."""
        worse = self.worse_with(scores, criterion)
        self.scores = {**(self.scores or {}), **scores}
        if criterion.figure not in scores:
            return
        if not self.judged_by(criterion):
            self.best_score = None
        self.best_figure, self.best_meaning = criterion.figure, criterion.meaning
        if worse == 0:
            self.best_score, self.best_step = scores[criterion.figure], self.step
        self.worse = worse

    def worse_with(self, scores: dict[str, float], criterion: Criterion) -> int:
        """The value of `worse` after these scores of this step."""
        if criterion.figure not in scores:
            return self.worse
        best, worse = (self.best_score, self.worse) if self.judged_by(criterion) else (None, 0)
        score, sign = scores[criterion.figure], 1 if criterion.greater_is_better else -1
        return 0 if math.isfinite(score) and (best is None or sign * score > sign * best) else worse + 1

    def judged_by(self, criterion: Criterion) -> bool:
        """Whether the best score so far is of this criterion; checkpoints of before record only the figure's name."""
        return self.best_figure == criterion.figure and self.best_meaning in (None, criterion.meaning)


class Saved(BaseModel):
    """The content of state.json."""

    model_config = ConfigDict(extra="forbid")

    state: TrainState
    settings: Settings


def read_computed(folder: Path) -> Computed | None:
    """The threads and ranks with which a checkpoint was computed; None if they are not recorded."""
    return Saved(**read_state(folder)).settings.computed


def read_state(folder: Path) -> dict[str, Any]:
    """A checkpoint's state.json, unvalidated."""
    name = state_name(listed_names(folder) or (path.name for path in folder.iterdir()))
    saved: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return saved


def state_name(names: Iterable[str]) -> str:
    """The name of the state file among a checkpoint's files."""
    return next(filter(STATE_NAME.fullmatch, names), STATE)


def find_checkpoint(
    store: Store, run: str, fingerprint: str | None = None, total_steps: int | None = None
) -> str | None:
    """The newest intact checkpoint of a run, or None if it never committed one.

    Damaged ones, and those of a run with another `fingerprint` or fewer steps, are renamed to set them aside, with one
    warning. Raises `ArtifactError` if none is intact.
    """
    found, damaged = look_for_checkpoint(store, run, fingerprint, total_steps)
    if found is None and damaged:
        raise ArtifactError(
            f"no checkpoint of {store.path(run)} is intact: {'; '.join(damaged.values())}. Restore one from a copy, or "
            "set another `run` to start again"
        )
    if found is not None and damaged:
        _set_aside(store, run, damaged)
        _point_back(store, run, found)
        log.warning(
            "%s: set aside; continuing from %s instead", "; ".join(damaged.values()), store.path(f"{run}/{found}")
        )
    return found


def look_for_checkpoint(
    store: Store, run: str, fingerprint: str | None = None, total_steps: int | None = None
) -> tuple[str | None, dict[str, str]]:
    """The newest intact checkpoint, and the defects of newer ones, by name; changes nothing."""
    steps, last = saved_steps(store, run), _last_step(store, run)
    damaged: dict[str, str] = {}
    if last is not None and last not in steps:
        damaged[folder_name(last)] = f"{store.path(f'{run}/{folder_name(last)}')}, to which {LAST} points, is missing"
    for step in reversed(steps):
        key = folder_name(step)
        if step != last and not store.exists(f"{run}/{key}/{MANIFEST}"):
            continue  # an interrupted save or deletion
        problem = find_problem(store, f"{run}/{key}", fingerprint, total_steps)
        if problem is None:
            return key, damaged
        damaged[key] = problem
    return None, damaged


def find_problem(store: Store, key: str, fingerprint: str | None = None, total_steps: int | None = None) -> str | None:
    """The defect of a checkpoint, or None."""
    try:
        manifest = read_manifest(store, key, CHECKPOINT_KIND)
    except ArtifactError as error:
        return str(error)
    if manifest is None:
        return f"{store.path(key)}/{MANIFEST} is missing"
    step = manifest.details.get("step")
    if fingerprint not in (None, manifest.fingerprint) or type(step) is not int or not key.endswith(folder_name(step)):
        return f"{store.path(key)} holds step {step} of the run with fingerprint {manifest.fingerprint}"
    damage = find_damage(store, key, manifest)
    if damage:
        return "; ".join(f"{store.path(key)}/{file} {problem}" for file, problem in damage.items())
    return _find_impossible(store, key, manifest, total_steps)


def _find_impossible(store: Store, key: str, manifest: Manifest, total_steps: int | None) -> str | None:
    """Content of a checkpoint that no training can have saved, whatever its checksums, or None."""
    name, details = state_name(manifest.digests()), manifest.details
    place = f"{store.path(key)}/{name}"
    try:
        saved = Saved.model_validate(read_listed(store, f"{key}/{name}", manifest.digests().get(name)))
        misfit = find_optimizer_mismatch(store, key, manifest, saved.settings)
    except ValidationError as error:
        return f"{place} is damaged: {in_one_line(error)}"
    except (ArtifactError, ValueError, RecursionError) as error:
        return f"{place}: {error}"
    state = saved.state
    # Compared as text, because NaN is not equal to itself.
    if fingerprint([state.step, state.scores]) != fingerprint([details["step"], details["scores"]]):
        return f"{place} has step {state.step} and scores {state.scores}; the manifest beside it has others"
    if state.attempts < state.step or (state.best_step or 0) > state.step:
        return (
            f"{place} is impossible: step {state.step} after {state.attempts} batches, the best at step "
            f"{state.best_step}"
        )
    if total_steps is not None and state.step > total_steps:
        return f"{place} is impossible: step {state.step} of {total_steps}"
    return misfit


def _last_step(store: Store, run: str) -> int | None:
    """The step of the last commit according to the pointer; None if it is missing or unreadable."""
    try:
        pointer = read_pointer(store, f"{run}/{LAST}")
    except (ArtifactError, StorageError) as error:
        log.warning("%s: reading the checkpoints' folders instead", error)
        return None
    return pointer.step if pointer else None


def _set_aside(store: Store, run: str, damaged: Iterable[str]) -> None:
    for key in damaged:
        folder, name = f"{run}/{key}".rsplit("/", 1)
        earlier = [re.fullmatch(rf"damaged-{name}-(\d+)", other) for other in store.names(folder)]
        number = max((int(each[1]) + 1 for each in earlier if each), default=0)
        store.rename(f"{run}/{key}", f"{folder}/damaged-{name}-{number}")


def _point_back(store: Store, run: str, key: str) -> None:
    """Move the pointer to the last commit to this one, because its target is gone."""
    manifest = read_manifest(store, f"{run}/{key}", CHECKPOINT_KIND)
    assert manifest is not None
    details = manifest.details
    write_pointer(store, f"{run}/{LAST}", details["step"], details["scores"])


def saved_steps(store: Store, run: str) -> list[int]:
    """The steps of all checkpoint folders of a run, committed or not, in order."""
    found = map(STEP.fullmatch, store.names(f"{run}/{CHECKPOINTS}"))
    return sorted(int(name[1]) for name in found if name)


def committed_steps(store: Store, run: str) -> list[int]:
    """The steps of all checkpoints with a manifest, in order."""
    return [step for step in saved_steps(store, run) if store.exists(f"{run}/{folder_name(step)}/{MANIFEST}")]


def ended_epoch(step: int, every: int) -> int | None:
    """The epoch of `every` steps that ends at a step, counted from 1, or None."""
    epoch, rest = divmod(step, every)
    return epoch if rest == 0 else None


def epoch_pointer(epoch: int, step: int, figure: str, scores: dict[str, float] | None) -> str:
    """The name of the pointer to an epoch's checkpoint; the job's figure may not have been measured then."""
    value = (scores or {}).get(figure)
    score = "" if value is None else f"-{figure.replace('/', '-')}-{value:.4f}"
    return f"{EPOCHS}/epoch-{epoch:04d}-step-{step:08d}{score}"


def drop_epochs(store: Store, run: str, keep: int) -> None:
    """Remove all but the newest `keep` epoch pointers; checkpoints without a pointer are then deleted like others."""
    epochs = find_epochs(store, run)
    for name in sorted(epochs, key=lambda name: epochs[name], reverse=True)[keep:]:
        store.delete(f"{run}/{EPOCHS}/{name}")


def find_epochs(store: Store, run: str) -> dict[str, int]:
    """The pointers to epochs' checkpoints, as a mapping of name to step."""
    return {name: int(found[1]) for name in store.names(f"{run}/{EPOCHS}") if (found := EPOCH.fullmatch(name))}
