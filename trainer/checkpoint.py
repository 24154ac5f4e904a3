"""Checkpoints: taken at a step boundary, written by a background thread, committed by their manifest.

    checkpoints/step-00000100/   model files as `save_pretrained` writes them, tokenizer, optimizer.safetensors, state.json
    checkpoint-last              names the newest committed one; moves only after the commit
    checkpoint-best              names the one with the best validation figure: the loss, or what the job says
    epochs/epoch-0001-step-00000100-loss-4.1234
                                 names the one kept for an epoch

The generator state of dropout is not in it: it follows from seed, attempt and rank. Nothing in it is unpickled.
"""

import json
import logging
import math
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from transformers import PreTrainedModel

from trainer.errors import ArtifactError, StorageError
from trainer.manifest import MANIFEST, find_damage, publish_folder, read_manifest
from trainer.places import BEST, CHECKPOINT_KIND, CHECKPOINTS, EPOCHS, LAST
from trainer.storage import Store

log = logging.getLogger(__name__)

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Criterion(NamedTuple):
    """The validation figure that says which checkpoint is best."""

    figure: str
    greater_is_better: bool


class TrainState(BaseModel):
    """Where a run stands. `attempts` counts global batches taken, `step` those that changed the weights.

    `scores` are the validation figures of this very step; `worse` counts the evaluations since the best one.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    step: int = 0
    attempts: int = 0
    scores: dict[str, float] | None = None
    best_score: float | None = None
    best_step: int | None = None
    worse: int = 0

    def judge(self, scores: dict[str, float], criterion: Criterion) -> None:
        """Take in the scores of this step. One that is not a number is never the best."""
        self.scores = scores
        score, sign = scores[criterion.figure], 1 if criterion.greater_is_better else -1
        if math.isfinite(score) and (self.best_score is None or sign * score > sign * self.best_score):
            self.best_score, self.best_step, self.worse = score, self.step, 0
        else:
            self.worse += 1


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that a checkpoint holds, which training no longer touches."""

    state: TrainState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    settings: dict[str, Any]
    epoch: int | None


def folder_name(step: int) -> str:
    return f"{CHECKPOINTS}/step-{step:08d}"


def take_snapshot(
    state: TrainState, model: PreTrainedModel, objective: Any, optimizer: Any, schedule: Any, scaler: Any, epoch: int | None
) -> Snapshot:
    """Copy the training state off the device. Every rank calls it; sharded states are gathered, to rank 0."""
    gathered: Any = get_optimizer_state_dict(objective, optimizer, options=FULL)
    tensors = {f"{name}/{key}": value for name, moments in gathered.get("state", {}).items() for key, value in moments.items()}
    settings = {
        "optimizer": gathered.get("param_groups"),
        "schedule": schedule.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }
    return Snapshot(state.model_copy(), _copied(model.state_dict()), _copied(tensors), settings, epoch)


def restore(folder: Path, objective: Any, optimizer: Any, schedule: Any, scaler: Any) -> TrainState:
    """Load optimizer, schedule, scaler and position from a checkpoint; its weights are loaded with the model."""
    saved = json.loads((folder / STATE).read_text(encoding="utf-8"))
    moments: dict[str, Any] = {}
    for key, tensor in load_file(folder / OPTIMIZER).items():
        name, _, moment = key.rpartition("/")
        moments.setdefault(name, {})[moment] = tensor
    gathered: Any = {"state": moments, "param_groups": saved["settings"]["optimizer"]}
    set_optimizer_state_dict(objective, optimizer, gathered, options=FULL)
    schedule.load_state_dict(saved["settings"]["schedule"])
    if scaler is not None:
        scaler.load_state_dict(saved["settings"]["scaler"])
    return TrainState(**saved["state"])


def find_checkpoint(store: Store, run: str) -> str | None:
    """The newest intact checkpoint of a run, or None if it never committed one.

    A damaged one is passed over with a warning. Raises `ArtifactError` if there are checkpoints but none is intact.
    """
    pointer: dict[str, str] | None
    try:
        pointer = store.read_json(f"{run}/{LAST}")
    except StorageError as error:
        log.warning("%s: looking at the checkpoints themselves", error)
        pointer = None
    steps = sorted((name for name in store.names(f"{run}/{CHECKPOINTS}") if name.startswith("step-")), reverse=True)
    names = ([pointer["checkpoint"]] if pointer else []) + [f"{CHECKPOINTS}/{name}" for name in steps]
    damaged = []
    for name in dict.fromkeys(names):
        key = f"{run}/{name}"
        try:
            manifest = read_manifest(store, key, CHECKPOINT_KIND)
        except ArtifactError as error:
            damaged.append(str(error))
            continue
        if manifest is None:
            if pointer and name == pointer["checkpoint"]:
                damaged.append(f"{store.path(key)}/{MANIFEST} is missing")
            continue
        damage = find_damage(store, key, manifest)
        if not damage:
            for problem in damaged:
                log.warning("%s: continuing from %s instead", problem, store.path(key))
            return name
        damaged += [f"{store.path(key)}/{file} {problem}" for file, problem in damage.items()]
    if damaged:
        raise ArtifactError(f"no checkpoint of {store.path(run)} is intact: {'; '.join(damaged)}")
    return None


class Saver:
    """Writes snapshots in a background thread, one at a time, and keeps what is to be kept."""

    def __init__(
        self,
        store: Store,
        run: str,
        model: PreTrainedModel,
        extra: Sequence[Path],
        fingerprint: str,
        keep_last: int,
        figure: str = "loss",
    ) -> None:
        self._store, self._run, self._model, self._extra = store, run, model, extra
        self._fingerprint, self._keep_last, self._figure = fingerprint, keep_last, figure
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Start writing; waits for the save before it. An error of an earlier save is raised here."""
        self.drain()
        self._pending = self._pool.submit(self._write, snapshot)

    def drain(self) -> None:
        """Wait until nothing is in flight."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.drain()
        finally:
            self._pool.shutdown()

    def _write(self, snapshot: Snapshot) -> None:
        state, name = snapshot.state, folder_name(snapshot.state.step)
        with self._store.staging() as folder:
            self._model.save_pretrained(folder, state_dict=snapshot.weights)
            for path in self._extra:
                (folder / path.name).write_bytes(path.read_bytes())
            save_file(snapshot.optimizer, folder / OPTIMIZER)
            saved = {"state": state.model_dump(), "settings": snapshot.settings}
            (folder / STATE).write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            details = {"step": state.step, "scores": state.scores, "run": self._fingerprint}
            publish_folder(self._store, folder, f"{self._run}/{name}", CHECKPOINT_KIND, self._fingerprint, details)
        self._point(LAST, snapshot)
        if state.best_step == state.step:
            self._point(BEST, snapshot)
        if snapshot.epoch is not None:
            score = f"-{self._figure}-{state.scores[self._figure]:.4f}" if state.scores else ""
            self._point(f"{EPOCHS}/epoch-{snapshot.epoch:04d}-step-{state.step:08d}{score}", snapshot)
        self._retire()

    def _point(self, pointer: str, snapshot: Snapshot) -> None:
        state = snapshot.state
        target = {"checkpoint": folder_name(state.step), "step": state.step, "scores": state.scores}
        self._store.write_json(f"{self._run}/{pointer}", target)

    def _retire(self) -> None:
        """Delete checkpoints that are neither among the last, nor the best, nor an epoch's."""
        pointers = [LAST, BEST, *(f"{EPOCHS}/{name}" for name in self._store.names(f"{self._run}/{EPOCHS}"))]
        kept = {target["checkpoint"] for p in pointers if (target := self._store.read_json(f"{self._run}/{p}"))}
        names = [f"{CHECKPOINTS}/{n}" for n in self._store.names(f"{self._run}/{CHECKPOINTS}") if re.fullmatch(r"step-\d+", n)]
        for name in names[: -self._keep_last]:
            if name not in kept:
                self._store.delete(f"{self._run}/{name}", first=MANIFEST)


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU; tensors that share their memory (tied weights) go on sharing it."""
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    result = {}
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tensor.shape)
        if identity not in copies:
            copies[identity] = tensor.detach().to("cpu", copy=True)
        result[name] = copies[identity]
    return result
