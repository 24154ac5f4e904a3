"""The records of a run: metrics.jsonl, and the same figures for TensorBoard."""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from trainer.common.errors import StorageError
from trainer.common.transient import retry_transient
from trainer.records.sealed import seal_line
from trainer.store.names import EVENTS, LOGS, METRICS_FILE, TENSORBOARD
from trainer.store.storage import Store
from trainer.training.metrics_reader import ASKED_BY, ENDED, ROLLBACK, intact_lines, open_line
from trainer.training.tracking import Board, Trackers

log = logging.getLogger(__name__)


class RunLog:
    """Appends records to a run's metrics.jsonl, and shows their figures in TensorBoard, beside the `job`'s
    hyperparameters.

    At the start it drops damaged records, and those after the step that the run resumes at, or all if the run starts
    again. Each save is recorded before it starts. If that record is missing when a run resumes there, records were
    lost; a number is then skipped so that every reader can detect this. If a step was saved `unmeasured`, records after
    that save are dropped too, because the step is evaluated and saved again. `constant` are curves that never change in
    this run; TensorBoard does not show them.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        step: int,
        job: Mapping[str, Any] | None = None,
        constant: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
        trackers: Trackers | None = None,
        unmeasured: bool = False,
    ) -> None:
        """`check` is called before records are uploaded, and raises if this process may no longer write to the run.

        `trackers` receive the same figures as TensorBoard.
        """
        self._trackers = trackers
        self._store, self._run, self._key, self._check = store, run, f"{run}/{METRICS_FILE}", check
        self._tasks: dict[str, str] = {}
        self._keep(step, (store.find_bytes(self._key) or b"") if step else b"", unmeasured, repeats=True)
        self._events = store.fetch(f"{run}/{TENSORBOARD}") if store.local else self._path.parent / TENSORBOARD
        if not self._written:
            store.delete(f"{run}/{TENSORBOARD}")
            shutil.rmtree(self._events, ignore_errors=True)
        files = map(EVENTS.match, store.names(f"{run}/{TENSORBOARD}"))
        self._board = Board(self._events, step, job, constant, max((int(each[1]) for each in files if each), default=0))
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - open for the whole run

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one complete record."""
        line = seal_line(self._key, self._written + 1, {"kind": kind, "step": step, **values})
        retry_transient(lambda: self._append(line))
        self._written += 1
        self._board.show(kind, step, values)
        if self._trackers is not None:
            self._trackers.show(kind, step, values)

    def note_tasks(self, step: int, tasks: Mapping[str, str]) -> None:
        """Record the fingerprint of each lm-eval task from this step on; warn about tasks that were others before."""
        by = {**self._tasks, **tasks}  # a task that is left out for some steps may return
        if by == self._tasks:
            return
        if other := sorted(name for name in tasks.keys() & self._tasks.keys() if tasks[name] != self._tasks[name]):
            log.warning(
                "%s: the lm-eval tasks %s, their data, their settings in evaluation.harness or lm-eval have changed: "
                "figures up to step %d are not comparable with later ones",
                self._store.path(self._key), ", ".join(other), step,
            )  # fmt: skip
        self.write(ASKED_BY, step, by=by)
        self._tasks = by

    def _append(self, line: bytes) -> None:
        """Append a line completely or not at all: what a full disk accepted of it is removed."""
        end = os.fstat(self._file.fileno()).st_size
        with self._store.explained_when_full(self._key, needed=len(line)):
            if self._file.write(line) < len(line):
                self._file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def rewind(self, step: int) -> None:
        """Drop the records after a step to which training rolls back, except that of the tasks measured from now on."""
        tasks = self._tasks
        self._file.close()
        self._keep(step, self._path.read_bytes())
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - open for the whole run
        self._board.rewind(step)
        self.note_tasks(step, tasks)

    def _keep(self, step: int, content: bytes, unmeasured: bool = False, repeats: bool = False) -> None:
        """Keep the intact records up to a step, without rollbacks to that step if training `repeats` what led to them.

        Searches from the end, so the time hardly grows with the run.
        """
        lines = intact_lines(self._store, self._run, content)
        while lines:
            number, line = lines.popitem()
            record = open_line(self._store, self._run, line)
            if record is not None and not _is_after(step, record, repeats):
                lines[number] = line
                break
        saves = self._saves(lines, step)
        if unmeasured and saves:
            lines = {number: line for number, line in lines.items() if number <= saves[-1]}
        self._written = max(lines, default=0)
        if step and not saves:
            log.warning("%s ends before step %d was saved: records are missing", self._store.path(self._key), step)
            self._written += 1
        self._tasks = self._last_tasks(lines)
        self._path = self._store.begin(self._key, b"".join(line + b"\n" for line in lines.values()))

    def _last_tasks(self, lines: dict[int, bytes]) -> dict[str, str]:
        """The newest recorded fingerprints of lm-eval tasks."""
        for line in reversed(lines.values()):
            if f'"{ASKED_BY}"'.encode() in line:  # the others need not be parsed
                record = open_line(self._store, self._run, line)
                if record is not None and record["kind"] == ASKED_BY:
                    by: dict[str, str] = record["by"]
                    return by
        return {}

    def _saves(self, lines: dict[int, bytes], step: int) -> list[int]:
        """The numbers of the last records that announce a save of this step, newest first.

        A step is saved again if its evaluation was interrupted.
        """
        saves = []
        for number, line in reversed(lines.items()):
            record = open_line(self._store, self._run, line)
            if record is None or record["step"] < step:
                break
            if record["kind"] == "save":
                saves.append(number)
        return saves

    def sync(self) -> None:
        """Flush written records to disk before the commit of a checkpoint from which a run continues with them.

        Records of a remote store are uploaded before that (`publish`).
        """
        if self._store.local is not None:
            with self._store.explained_when_full(self._key):
                os.fsync(self._file.fileno())

    def publish(self) -> None:
        """Upload the files to a remote store; in a local one they are already in place.

        Failed uploads are repeated at the next call, and at the end of the block.
        """
        try:
            self._send()
        except StorageError as error:
            log.warning("the run's records could not be uploaded: %s", error)

    def _send(self) -> None:
        if self._store.local is None:
            self._check()
            for path in [self._path, *self._events.glob("*"), *(self._path.parent / LOGS).glob("*")]:
                self._store.put(path, f"{self._run}/{path.relative_to(self._path.parent).as_posix()}")

    def __enter__(self) -> Self:
        self._board.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.sync()
        self._file.close()
        self._board.__exit__(kind, error, trace)
        if error is None:
            retry_transient(self._send)
        else:
            self.publish()


def _is_after(step: int, record: dict[str, Any], repeats: bool) -> bool:
    """Whether a record is of a later step, or of something that a continued run reaches again: the end of training, or
    a rollback to this step if it `repeats` the batches after it.
    """
    again = record["kind"] == ROLLBACK and record["step"] == step and repeats
    return bool(record["step"] > step or record["kind"] == ENDED or again)
