"""What a run shows in TensorBoard while it trains: the curves of its records, and its hyperparameters.

A second record, for which training does not end: what cannot be written is warned of.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trainer.runs.board_messages import scalar, session_start

log = logging.getLogger(__name__)

NOT_WRITTEN = "TensorBoard's files can no longer be written: %s"

NO_CURVES = {"attempts", "checkpoint", "epoch", "examples", "rates", "text_bytes", "tokens"}
"""Fields of records that count, or stay the same throughout a run."""

BY_CORPUS = {"corpora": "loss", "corpora_bits_per_byte": "bits_per_byte"}
"""Fields that hold a figure of each corpus, and the name of that."""


class Board:
    """Writes a file of a run's folder for TensorBoard, for the length of a block.

    What other files there show of steps after the one that the run resumes at is taken back. `constant` are the curves, such as
    `train/learning_rate`, that never change in this run, and are left out.
    """

    def __init__(self, folder: Path, step: int, job: Mapping[str, Any] | None = None, constant: Collection[str] = ()) -> None:
        self._folder, self._step, self._job, self._constant = folder, step, job, constant
        self._file: EventFileWriter | None = None
        self._told, self._turn = False, threading.Lock()

    def show(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Show a record's figures."""
        for tag, value in curves_of(kind, values).items():
            if tag not in self._constant:
                self._add(Event(step=step, summary=scalar(tag, value)))

    def rewind(self, step: int) -> None:
        """Take back what is shown of steps after one that training goes on from."""
        self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        with self._only_warned():
            if self._file is None:
                self._folder.mkdir(exist_ok=True)  # not those above it, as those of a store that is away
                self._file = EventFileWriter(str(self._folder))
            self._file.add_event(event)

    def flush(self) -> None:
        """See to it that the file holds everything."""
        with self._only_warned():
            if self._file is not None:
                self._file.flush()

    def __enter__(self) -> Self:
        self._hook, threading.excepthook = threading.excepthook, self._report
        self.rewind(self._step)
        if self._job is not None:
            self._add(Event(summary=session_start(self._job)))
        return self

    def __exit__(self, *error: object) -> None:
        with self._only_warned():
            if self._file is not None:
                self._file.close()
        threading.excepthook = self._hook

    @contextmanager
    def _only_warned(self) -> Iterator[None]:
        """Say once that the file cannot be written; what is shown later goes to another one, once there is room again."""
        try:
            yield
        except OSError as error:
            self._file = None
            self._warn(error)

    def _report(self, failure: threading.ExceptHookArgs) -> None:
        """Say in one line that TensorBoard's own thread has failed."""
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._hook(failure)
            return
        self._warn(failure.exc_value)

    def _warn(self, error: BaseException | None) -> None:
        with self._turn:  # its own thread and this one meet the same at once
            told, self._told = self._told, True
        if not told:
            log.warning(NOT_WRITTEN, error)


def curves_of(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a record that make curves, by TensorBoard's names: `evaluation/loss`, `evaluation/loss/code`."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if name in BY_CORPUS:
            found |= {f"{kind}/{BY_CORPUS[name]}/{corpus}": each for corpus, each in value.items() if each is not None}
        elif name not in NO_CURVES and isinstance(value, int | float):
            found[f"{kind}/{name}"] = value
    return found
