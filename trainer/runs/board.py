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
        self._constant = constant
        self._file = EventFileWriter(str(folder))
        self.rewind(step)
        if job is not None:
            self._add(Event(summary=session_start(job)))

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
        with _only_warned():
            self._file.add_event(event)

    def flush(self) -> None:
        """See to it that the file holds everything."""
        with _only_warned():
            self._file.flush()

    def __enter__(self) -> Self:
        self._hook, threading.excepthook = threading.excepthook, self._report
        return self

    def __exit__(self, *error: object) -> None:
        threading.excepthook = self._hook
        with _only_warned():
            self._file.close()

    def _report(self, failure: threading.ExceptHookArgs) -> None:
        """Say in one line that TensorBoard's own thread has failed."""
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._hook(failure)
            return
        log.warning(NOT_WRITTEN, failure.exc_value)


def curves_of(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a record that make curves, by TensorBoard's names: `evaluation/loss`, `evaluation/loss/code`."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if name in BY_CORPUS:
            found |= {f"{kind}/{BY_CORPUS[name]}/{corpus}": each for corpus, each in value.items() if each is not None}
        elif name not in NO_CURVES and isinstance(value, int | float):
            found[f"{kind}/{name}"] = value
    return found


@contextmanager
def _only_warned() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning(NOT_WRITTEN, error)
