"""Snapshots of the training state, and the background writer that commits them as checkpoints.

`_commit` commits a checkpoint: the instant is the rename in `put_folder` of store/local.py, or the upload of the
manifest in store/remote.py. part_saver.py does it for a sharded model. `find_checkpoint` in checkpoint.py finds it.

Snapshots are copied to memory that is reused from save to save. Filling new memory takes several times as long (the
system provides it page by page), and a GPU copies fastest to page-locked memory. PyTorch's own page-locked memory comes
in powers of two, up to twice the requested size; so this module allocates it from the system and locks it itself.
"""

import json
import logging
import mmap
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from trainer.common.errors import ArtifactError, StorageError
from trainer.common.stopping import defer_stop
from trainer.common.transient import is_transient, retry_transient
from trainer.models.adapters import save_model, trained_tensors
from trainer.models.tensor_rows import RowRange, own_tensors
from trainer.models.weights import Base
from trainer.records.sealed import write_pointer
from trainer.records.shapes import folder_name
from trainer.store.manifest import MANIFEST, publish_folder
from trainer.store.names import BEST, CHECKPOINT_KIND, EPOCHS, LAST
from trainer.store.storage import Store
from trainer.training.checkpoint import (
    OPTIMIZER,
    STATE,
    EndedEpoch,
    TrainState,
    committed_steps,
    drop_epochs,
    epoch_pointer,
    find_epochs,
    saved_steps,
)
from trainer.training.restoring import parameter_names
from trainer.training.run_repair import repair_pointers
from trainer.training.sharding import LocalPart

log = logging.getLogger(__name__)


ALIGNMENT = 64
"""Bytes to which tensors are aligned: the most that vector instructions and safetensors require."""


class HostCopies:
    """Copies on the CPU, by kind and name."""

    def __init__(self) -> None:
        self._buffers: dict[str, _Buffer] = {}

    def take(self, kind: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy tensors over the earlier copies of the same kind; tied weights keep sharing their memory."""
        places = {name: (tensor.data_ptr(), tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        distinct = {place: tensors[name] for name, place in places.items()}
        layout = [(tensor.shape, tensor.dtype) for tensor in distinct.values()]
        lock = any(tensor.is_cuda for tensor in distinct.values())
        buffer = self._buffers.get(kind)
        if buffer is None or buffer.layout != layout:
            self._buffers.pop(kind, None)
            buffer = None  # frees its memory before new memory is allocated
            buffer = self._buffers[kind] = _Buffer(layout, lock)
        copies = dict(zip(distinct, buffer.tensors, strict=True))
        for place, tensor in distinct.items():
            copies[place].copy_(tensor.detach(), non_blocking=True)
        if lock:
            torch.cuda.synchronize()
        return {name: copies[place] for name, place in places.items()}


class _Buffer:
    """Memory for tensors of given shapes and types, one after the other."""

    def __init__(self, layout: list[tuple[torch.Size, torch.dtype]], lock: bool) -> None:
        self.layout = layout
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in layout]
        starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
        memory = mmap.mmap(-1, max(1, starts.pop()), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.tensors = []
        for (shape, dtype), size, start in zip(layout, sizes, starts, strict=True):
            # Each has its own storage, because `save_file` treats tensors that share one as tied.
            raw = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start) if size else torch.empty(0)
            self.tensors.append(raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype))
        if lock and (address := _lock(memory)) is not None:
            # If memory stays locked after it is unmapped, copies to other memory at that address are wrong.
            weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, address)


def _lock(memory: mmap.mmap) -> int | None:
    """Page-lock memory for copies from a GPU; returns its address, or None if that fails."""
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    status = torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)
    if status.value:
        log.info(
            "checkpoints: %d bytes cannot be page-locked (CUDA error %d): training waits longer for saves",
            len(memory),
            status.value,
        )
        with suppress(RuntimeError):  # the next computation raises the error
            torch.zeros(1, device="cuda").add_(1)
        return None
    return address


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that a checkpoint contains; training does not touch it."""

    state: TrainState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    settings: dict[str, Any]
    epoch: int | None
    row_ranges: dict[str, RowRange] = field(default_factory=dict)
    """The rows that this rank holds of each tensor divided among the ranks, by name: weights and optimizer tensors."""

    def size(self) -> int:
        """Bytes of its tensors, which are nearly all of its size on disk; tied weights count once."""
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in [*self.weights.values(), *self.optimizer.values()]}
        return sum(tensors.values())


def take_snapshot(
    copies: HostCopies,
    state: TrainState,
    model: PreTrainedModel,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Any,
    scaler: Any,
    epoch: int | None,
    computed: dict[str, Any] | None = None,
    own_part: Callable[[Mapping[str, torch.Tensor]], LocalPart] | None = None,
) -> Snapshot:
    """Copy the training state off the device, over the earlier snapshot in `copies`.

    `computed` are the number of threads and ranks. Every rank has the whole state, so one of them saves it; of a
    sharded model, each rank saves its `own_part`. Of a model with an adapter, only the adapter is saved.
    `optimizer.safetensors` names a tensor by its parameter's name in the objective and its own
    ("transformer.wte.weight/exp_avg"), as `torch.distributed.checkpoint.state_dict` does.
    """
    names = parameter_names(objective)
    moments = {
        f"{names[parameter]}/{name}": value
        for parameter, values in optimizer.state.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)  # SGD without momentum has None
    }
    settings = {
        "optimizer": [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups],
        "schedule": schedule.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
        "computed": computed,
    }
    if own_part is None:
        weights, row_ranges = trained_tensors(model), {}
    else:
        (weights, rows), (moments, other_rows) = own_part(own_tensors(model)), own_part(moments)
        row_ranges = rows | other_rows
    weights, moments = copies.take("weights", weights), copies.take("optimizer", moments)
    return Snapshot(state.model_copy(), weights, moments, settings, epoch, row_ranges)


MAX_FAILED_SAVES = 3


class Commit(NamedTuple):
    """A committed checkpoint: its step, and the seconds from the snapshot to the commit."""

    step: int
    seconds: float


@dataclass(frozen=True)
class SaverOptions:
    """What a run's checkpoints contain besides its state, which are kept, and whether they may be written."""

    extra: Sequence[Path]
    """Files beside the model."""
    fingerprint: str
    """The run's fingerprint."""
    keep_last: int
    figure: str = "loss"
    """The figure that decides which checkpoint is the best."""
    check: Callable[[], None] = lambda: None
    """Called before each commit, before its pointers are written, and before deletions; raises if this process may no
    longer write to the run."""
    ended: EndedEpoch = lambda step: None
    """Returns the epoch that ends at a step."""
    keep_epochs: int | None = None
    """How many checkpoints of epochs are kept, the newest; None: all."""
    base: Base | None = None
    """The model beside which an adapter is trained; then only the adapter is saved."""


class Saver:
    """Writes snapshots in a background thread, one at a time, and deletes checkpoints that are not to be kept.

    Transient errors are retried in the background for as long as `patience` allows, and then raised. Other failures are
    logged and training continues to the next save; `MAX_FAILED_SAVES` of them in a row, or a failure of the last save,
    are raised. A committed checkpoint is never written again, except for a step that was saved unmeasured: after the
    commit only its pointers are retried, and deletions that fail are left for later.
    """

    def __init__(self, store: Store, run: str, model: PreTrainedModel, options: SaverOptions) -> None:
        self._store, self._run, self._model, self._options = store, run, model, options
        self._require_lease = options.check
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Commit] | None = None
        self._failures = 0
        self._replaced: int | None = None
        self._unmarked: list[tuple[TrainState, int | None]] = []
        self._copies = HostCopies()

    def save(self, take: Callable[[HostCopies], Snapshot]) -> Commit | None:
        """Take a snapshot and start writing it, after the previous save has finished, because both use the same copies.

        Returns the commit of the previous save; None if it failed or there was none. Raises `StorageError` after too
        many failures in a row, or if a transient error lasted too long.
        """
        try:
            commit = self.drain()
        except StorageError as error:
            if error.transient:
                raise
            self._failures += 1
            if self._failures >= MAX_FAILED_SAVES:
                raise StorageError(f"{self._failures} checkpoints in a row could not be saved: {error}") from error
            log.warning("a checkpoint could not be saved, training continues: %s", error)
            commit = None
        self._pending = self._pool.submit(self._write_patiently, take(self._copies))
        return commit

    def drain(self) -> Commit | None:
        """Wait until the current save has finished. Raises `StorageError` if it failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        commit = pending.result()
        self._failures = 0
        return commit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.drain()
        except StorageError as failure:
            if error is None:
                raise
            # The error that ends training is more informative.
            log.warning("the last checkpoint could not be saved: %s", failure)
        finally:
            self._pool.shutdown()

    def _write_patiently(self, snapshot: Snapshot) -> Commit:
        started = time.monotonic()
        step = snapshot.state.step
        with defer_stop():
            warn = partial(log.warning, "step %d is not saved yet: %s", step)
            retry_transient(lambda: self._commit(snapshot), warn)
            retry_transient(self._mark, warn)
        return Commit(step, time.monotonic() - started)

    def _commit(self, snapshot: Snapshot) -> None:
        state, place = snapshot.state, self._place(snapshot)
        with as_storage_errors(self._store.path(place)), self._store.staging(snapshot.size(), place) as folder:
            # `save_model` empties the mapping that it is given, and a retry must start from the same snapshot.
            save_model(self._model, folder, self._options.base, snapshot.weights)
            save_file(snapshot.optimizer, folder / OPTIMIZER)
            self._write_settings(snapshot, folder)
            self._require_lease()
            self._drop_dangling_pointer(state)
            # The commit: publish_folder -> put_published -> Store.put_folder, and there the rename in store/local.py or
            # the upload of the manifest, after the other files, in store/remote.py.
            publish_folder(self._store, folder, place, CHECKPOINT_KIND, self._options.fingerprint, self._details(state))
        self._unmarked.append((state, snapshot.epoch))

    def _place(self, snapshot: Snapshot) -> str:
        return f"{self._run}/{folder_name(snapshot.state.step)}"

    def _write_settings(self, snapshot: Snapshot, folder: Path) -> None:
        """Write everything except tensors: the files beside the model, and state.json."""
        for path in self._options.extra:
            (folder / path.name).write_bytes(path.read_bytes())
        saved = {"state": snapshot.state.model_dump(), "settings": snapshot.settings}
        (folder / STATE).write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _details(self, state: TrainState) -> dict[str, Any]:
        return {"step": state.step, "scores": state.scores, "run": self._options.fingerprint}

    def _drop_dangling_pointer(self, state: TrainState) -> None:
        if state.step == self._replaced:  # a kill during the replacement must not leave a dangling pointer
            self._store.delete(f"{self._run}/{LAST}")

    def _mark(self) -> None:
        """Write the pointers of committed checkpoints, first those that could not be written earlier, and clean up."""
        newest, _ = self._unmarked[-1]
        while self._unmarked:
            self._point_out(*self._unmarked[0])
            del self._unmarked[0]
        self._retire(newest)

    def complete(self, state: TrainState) -> None:
        """Point to the checkpoint that training continues from, in case a kill came between its commit and its
        pointers.
        """
        self._replaced = state.step if state.unmeasured else None
        self._point_out(state, self._ended_epoch(state, state.step))
        self._retire(state)

    def _ended_epoch(self, state: TrainState, step: int) -> int | None:
        """The epoch that ends at a step; None while the step is unmeasured: the pointer's name contains its figure."""
        return None if state.unmeasured and step == state.step else self._options.ended(step)

    def _point_out(self, state: TrainState, epoch: int | None) -> None:
        self._require_lease()
        self._point(LAST, state)
        if state.best_step == state.step:
            self._point(BEST, state)
        if epoch is not None:
            pointer = epoch_pointer(epoch, state.step, self._options.figure, state.scores)
            self._point(pointer, state)
            for name, step in find_epochs(self._store, self._run).items():
                if step == state.step and f"{EPOCHS}/{name}" != pointer:  # of before `best_by` was changed
                    self._store.delete(f"{self._run}/{EPOCHS}/{name}")

    def _point(self, pointer: str, state: TrainState) -> None:
        write_pointer(self._store, f"{self._run}/{pointer}", state.step, state.scores)

    def _retire(self, state: TrainState) -> None:
        """Delete checkpoints that are no longer needed; if that fails, the next save tries again."""
        try:
            self._delete_unneeded(state)
        except (ArtifactError, StorageError) as error:
            log.warning("checkpoints that are no longer needed are not deleted yet: %s", error)

    def _delete_unneeded(self, state: TrainState) -> None:
        """Delete uncommitted folders, and checkpoints that are not among the last, the best, or a kept epoch's."""
        steps, options = committed_steps(self._store, self._run), self._options
        ended = partial(self._ended_epoch, state)
        if options.keep_epochs is not None:
            drop_epochs(self._store, self._run, options.keep_epochs)
        kept = repair_pointers(self._store, self._run, steps, state, ended, options.figure, options.keep_epochs)
        kept.update(steps[-options.keep_last :], [] if state.best_step is None else [state.best_step])
        unneeded = [step for step in saved_steps(self._store, self._run) if step not in kept]
        self._delete_listed([f"{self._run}/{folder_name(step)}" for step in unneeded], first=MANIFEST)

    def _delete_listed(self, keys: Sequence[str], first: str | None = None) -> None:
        """Delete keys from a listing, unless another process has taken over the run since and they may be its."""
        if keys:
            self._require_lease()
        for key in keys:
            self._store.delete(key, first)


@contextmanager
def as_storage_errors(place: str) -> Iterator[None]:
    """Turn errors of the libraries that write a checkpoint into the store's, which are retried."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot write {place}: {error}; check that the store is reachable and intact", is_transient(error)
        ) from error
