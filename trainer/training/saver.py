"""The background writer of checkpoints: their commit, what points to them, and which are kept."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedModel

from trainer.common.errors import ArtifactError, StorageError
from trainer.common.outages import passes, patiently
from trainer.common.stopping import finishing
from trainer.models.adapters import save_model
from trainer.models.weights import Base
from trainer.records.sealed import folder_name, write_pointer
from trainer.store.manifest import MANIFEST, publish_folder
from trainer.store.names import BEST, CHECKPOINT_KIND, CHECKPOINTS, LAST
from trainer.store.storage import Store
from trainer.training.checkpoint import STATE, TrainState
from trainer.training.host_copies import HostCopies
from trainer.training.mending import EndedEpoch, committed_steps, drop_epochs, epoch_pointer, mend_pointers
from trainer.training.saved_settings import OPTIMIZER
from trainer.training.snapshot import Snapshot

log = logging.getLogger(__name__)

MAX_FAILED_SAVES = 3


class Commit(NamedTuple):
    """A checkpoint that was committed: its step, and the seconds from the snapshot to the commit."""

    step: int
    seconds: float


class Saver:
    """Writes snapshots in a background thread, one at a time, and keeps what is to be kept.

    A save that meets what passes by itself is tried again, in the background, as long as `patience` says; then it is an error.
    One that fails otherwise is reported, and training goes on to the next one: `MAX_FAILED_SAVES` of them in a row, or the last
    one of all, are an error. What is committed is never written again, but for a step that was saved unmeasured: after the
    commit only its pointers are tried again, and what cannot be deleted stays until later.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        model: PreTrainedModel,
        extra: Sequence[Path],
        fingerprint: str,
        keep_last: int,
        figure: str = "loss",
        check: Callable[[], None] = lambda: None,
        ended: EndedEpoch = lambda step: None,
        keep_epochs: int | None = None,
        base: Base | None = None,
    ) -> None:
        """`base` is the model that an adapter is trained beside, of which the adapter alone is saved.

        `check` is called before each commit, and raises if this process may no longer write to the run.

        `ended` says which epoch ends with a step: its checkpoint is kept, or, with `keep_epochs`, those of the newest so many.
        """
        self._store, self._run, self._model, self._extra = store, run, model, extra
        self._fingerprint, self._keep_last, self._figure, self._check = fingerprint, keep_last, figure, check
        self._ended, self._keep_epochs, self._base = ended, keep_epochs, base
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Commit] | None = None
        self._failures = 0
        self._replaced: int | None = None
        self._unmarked: list[tuple[TrainState, int | None]] = []
        self._copies = HostCopies()

    def save(self, take: Callable[[HostCopies], Snapshot]) -> Commit | None:
        """Take a snapshot and start writing it, once the save before it is over: the copies are the same memory.

        Returns the commit of the save before; None if that failed or there was none. Raises `StorageError` once too many in a
        row have failed, or if what should pass did not in time.
        """
        try:
            commit = self.drain()
        except StorageError as error:
            if error.passes:
                raise
            self._failures += 1
            if self._failures >= MAX_FAILED_SAVES:
                raise StorageError(f"{self._failures} checkpoints in a row could not be saved: {error}") from error
            log.warning("a checkpoint could not be saved, training goes on: %s", error)
            commit = None
        self._pending = self._pool.submit(self._write_patiently, take(self._copies))
        return commit

    def drain(self) -> Commit | None:
        """Wait until nothing is in flight. Raises `StorageError` if it failed."""
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
            log.warning("the last checkpoint could not be saved: %s", failure)  # the error that ends training tells more
        finally:
            self._pool.shutdown()

    def _write_patiently(self, snapshot: Snapshot) -> Commit:
        started = time.monotonic()
        step = snapshot.state.step
        with finishing():
            tell = partial(log.warning, "step %d is not saved yet: %s", step)
            patiently(lambda: self._commit(snapshot), tell)
            patiently(self._mark, tell)
        return Commit(step, time.monotonic() - started)

    def _commit(self, snapshot: Snapshot) -> None:
        state, place = snapshot.state, self._place(snapshot)
        with told(self._store.path(place)), self._store.staging(snapshot.size(), place) as folder:
            # It empties what it is given, and this may be done again.
            save_model(self._model, folder, self._base, snapshot.weights)
            save_file(snapshot.optimizer, folder / OPTIMIZER)
            self._write_settings(snapshot, folder)
            self._check()
            self._make_room(state)
            # It is committed when this returns: by the rename in store/local.py, or the manifest's upload in store/remote.py.
            publish_folder(self._store, folder, place, CHECKPOINT_KIND, self._fingerprint, self._details(state))
        self._unmarked.append((state, snapshot.epoch))

    def _place(self, snapshot: Snapshot) -> str:
        return f"{self._run}/{folder_name(snapshot.state.step)}"

    def _write_settings(self, snapshot: Snapshot, folder: Path) -> None:
        """Write what is no tensor: the files beside the model, and state.json."""
        for path in self._extra:
            (folder / path.name).write_bytes(path.read_bytes())
        saved = {"state": snapshot.state.plain(), "settings": snapshot.settings}
        (folder / STATE).write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _details(self, state: TrainState) -> dict[str, Any]:
        return {"step": state.step, "scores": state.scores, "run": self._fingerprint}

    def _make_room(self, state: TrainState) -> None:
        if state.step == self._replaced:  # a kill while it is replaced must not leave a pointer to nothing
            self._store.delete(f"{self._run}/{LAST}")

    def _mark(self) -> None:
        """Complete what is committed: the newest, and before it those whose pointers could not be written in their time."""
        self._check()
        newest, _ = self._unmarked[-1]
        while self._unmarked:
            self._point_out(*self._unmarked[0])
            del self._unmarked[0]
        self._retire(newest)

    def complete(self, state: TrainState) -> None:
        """Point to the checkpoint that training continues from, in case a kill came between its commit and its pointers."""
        self._replaced = state.step if state.unmeasured else None
        self._point_out(state, self._ended_epoch(state, state.step))
        self._retire(state)

    def _ended_epoch(self, state: TrainState, step: int) -> int | None:
        """The epoch that ends with a step; none as long as the step is unmeasured, as the epoch's pointer tells its figure."""
        return None if state.unmeasured and step == state.step else self._ended(step)

    def _point_out(self, state: TrainState, epoch: int | None) -> None:
        self._point(LAST, state)
        if state.best_step == state.step:
            self._point(BEST, state)
        if epoch is not None:
            self._point(epoch_pointer(epoch, state.step, self._figure, state.scores), state)

    def _point(self, pointer: str, state: TrainState) -> None:
        write_pointer(self._store, f"{self._run}/{pointer}", state.step, state.scores)

    def _retire(self, state: TrainState) -> None:
        """Delete what is not needed any more; what cannot be deleted now stays until the next time."""
        try:
            self._delete_unneeded(state)
        except (ArtifactError, StorageError) as error:
            log.warning("checkpoints that are not needed any more stay for now: %s", error)

    def _delete_unneeded(self, state: TrainState) -> None:
        """Delete checkpoints that are neither among the last, nor the best, nor a kept epoch's, and what was not committed."""
        steps = committed_steps(self._store, self._run)
        ended = partial(self._ended_epoch, state)
        if self._keep_epochs is not None:
            drop_epochs(self._store, self._run, self._keep_epochs)
        kept = mend_pointers(self._store, self._run, steps, state, ended, self._figure, self._keep_epochs)
        kept.update(steps[-self._keep_last :], [] if state.best_step is None else [state.best_step])
        for name in self._store.names(f"{self._run}/{CHECKPOINTS}"):
            if re.fullmatch(r"step-\d+", name) and int(name.removeprefix("step-")) not in kept:
                self._store.delete(f"{self._run}/{CHECKPOINTS}/{name}", first=MANIFEST)


@contextmanager
def told(place: str) -> Iterator[None]:
    """Errors of the libraries that write a checkpoint, as those of the store: worth another try."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot write {place}: {error}; check that the store is reachable and whole", passes(error)
        ) from error
