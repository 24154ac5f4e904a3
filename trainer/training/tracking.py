"""Trackers that receive a run's figures: TensorBoard, and Trackio, Weights & Biases and MLflow.

Each stores its data on this machine unless its own environment variables say otherwise. A continued run keeps its name
there. A tracker that fails does not end training: it is no longer used, with a warning.
"""

import importlib.util
import io
import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from trainer.common.errors import ConfigError, brief
from trainer.common.stopping import StopRequested
from trainer.config.training import Tracker
from trainer.records.fields import flatten

log = logging.getLogger(__name__)


HYPERPARAMETERS = ("model", "training")
"""The parts of a job that hold its hyperparameters."""


def session_start(job: Mapping[str, Any]) -> Summary:
    """A job's hyperparameters by the paths of their fields; unset ones are left out.

    TensorBoard derives the columns of its table and the figures to compare from all runs that it shows.
    """
    started = SessionStartInfo()
    for name, value in flatten({part: job[part] for part in HYPERPARAMETERS}).items():
        if isinstance(value, bool):
            started.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            started.hparams[name].number_value = value
        elif value is not None:
            started.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
    return _of_session(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=started))


def session_end(time: float) -> Summary:
    """The message that a run has finished at a time in seconds."""
    ended = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time)
    return _of_session(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=ended))


def scalar(tag: str, value: float) -> Summary:
    """A figure."""
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def text(tag: str, markdown: str) -> Summary:
    """A text."""
    kind = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode(errors="replace")], tensor_shape=shape)
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=kind), tensor=tensor)])


def event_file(summaries: Iterable[Summary], step: int, time: float) -> bytes:
    """A TensorBoard file with messages of one step and time; the same input gives the same bytes."""
    file = io.BytesIO()
    records = _begin(file, time)
    for summary in summaries:
        records.write(Event(wall_time=time, step=step, summary=summary).SerializeToString(deterministic=True))
    return file.getvalue()


def _begin(file: IO[bytes], time: float) -> RecordWriter:
    records = RecordWriter(file)
    records.write(Event(wall_time=time, file_version="brain.Event:2").SerializeToString())
    return records


def _of_session(tag: str, data: HParamsPluginData) -> Summary:
    """Like `metadata.create_summary_metadata`, but with the same bytes each time."""
    data.version = metadata.PLUGIN_DATA_VERSION
    content = data.SerializeToString(deterministic=True)
    kind = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=kind), tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


NOT_WRITTEN = "TensorBoard's files can no longer be written: %s"

NO_CURVES = {
    "answer_tokens", "attempts", "checkpoint", "epoch", "examples", "rates", "steps", "text_bytes", "tokens",
}  # fmt: skip
"""Fields of records that are counts, or stay the same throughout a run."""

BY_CORPUS = {"corpora": "loss", "corpora_bits_per_byte": "bits_per_byte"}
"""Fields with a figure for each corpus, and the name of that figure."""

_files = itertools.count()
"""Numbers the files of this process, as TensorBoard's own writer does."""


class Board:
    """Writes a TensorBoard file into a run's folder, inside a `with` block.

    Steps after the one that the run resumes at are removed from the display of earlier files. Curves in `constant`,
    such as `train/learning_rate`, never change in this run and are left out.

    TensorBoard reads a run's files in the order of their names, which begin with a second. So a file is named by a
    later one than the second `after`, of the earlier files, also if the clock was set back or another machine's is
    behind.
    """

    def __init__(
        self, folder: Path, step: int, job: Mapping[str, Any] | None = None, constant: Collection[str] = (),
        after: int = 0,
    ) -> None:  # fmt: skip
        self._folder, self._step, self._job, self._constant, self._after = folder, step, job, constant, after
        self._records: RecordWriter | None = None
        self._warned = False

    def show(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Show a record's figures."""
        for tag, value in curves_of(kind, values).items():
            if tag not in self._constant:
                self._add(Event(step=step, summary=scalar(tag, value)))

    def rewind(self, step: int) -> None:
        """Remove steps after one at which training continues from the display."""
        self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        with self._only_warned():
            if self._records is None:
                self._folder.mkdir(exist_ok=True)  # without parents, which may belong to an unreachable store
                self._after = max(int(event.wall_time), self._after + 1)
                started = f"{self._after:010d}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
                file = open(self._folder / f"events.out.tfevents.{started}", "wb")  # noqa: SIM115 - for the whole run
                self._records = _begin(file, event.wall_time)
            self._records.write(event.SerializeToString())
            self._records.flush()

    def __enter__(self) -> Self:
        self.rewind(self._step)
        if self._job is not None:
            self._add(Event(summary=session_start(self._job)))
        return self

    def __exit__(self, *error: object) -> None:
        with self._only_warned():
            if self._records is not None:
                self._records.close()

    @contextmanager
    def _only_warned(self) -> Iterator[None]:
        """Warn once if the file cannot be written. Later events go to a new file, once there is disk space again."""
        try:
            yield
        except OSError as error:
            with suppress(OSError):  # a full disk does not take what is still buffered either
                if self._records is not None:
                    self._records.close()
            self._records = None
            if not self._warned:
                log.warning(NOT_WRITTEN, error)
            self._warned = True


def curves_of(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a record, by their names in TensorBoard: `evaluation/loss`, `evaluation/loss/code`."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if name in BY_CORPUS:
            found |= {f"{kind}/{BY_CORPUS[name]}/{corpus}": each for corpus, each in value.items() if each is not None}
        elif name not in NO_CURVES and isinstance(value, int | float):
            found[f"{kind}/{name}"] = value
    return found


OFFLINE = "offline"


def check_trackers(names: Sequence[Tracker]) -> None:
    """Raise `ConfigError` for a tracker whose package, of the same name, is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"tracking lists {name}, which is not installed: pip install {name}, or remove it")


class Trackers:
    """Sends a run's figures to trackers, inside a `with` block; only rank 0 has trackers.

    `project` groups the runs of the same job, and `run` is the name of this one.
    """

    def __init__(self, names: Sequence[Tracker], project: str, run: str, job: Mapping[str, Any]) -> None:
        self._trackers: dict[str, Any] = {}
        for name in names:
            self._attempt(name, lambda name=name: self._start(name, project, run, job))  # type: ignore[misc]

    def show(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Send a record's figures."""
        if self._trackers and (curves := curves_of(kind, values)):
            for name, tracker in list(self._trackers.items()):
                self._attempt(name, lambda tracker=tracker: tracker.log(curves, step=step))  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.finish)

    def _start(self, name: Tracker, project: str, run: str, job: Mapping[str, Any]) -> None:
        tracker = MAKERS[name](project, run)
        tracker.start()
        self._trackers[name] = tracker
        tracker.store_init_configuration(_settings(job))

    def _attempt(self, name: str, work: Callable[[], object]) -> None:
        """Call a tracker. Its output goes to this process's, as the output of its threads does anyway."""
        try:
            work()
        except StopRequested:
            raise
        except Exception as error:  # each tracker has its own exceptions
            self._trackers.pop(name, None)
            log.warning("tracking: %s failed and is no longer used: %s: %s", name, type(error).__name__, brief(error))


def _trackio(project: str, run: str) -> Any:
    from accelerate.tracking import TrackioTracker

    return TrackioTracker(project, name=run, resume="allow", embed=False)


def _wandb(project: str, run: str) -> Any:
    from accelerate.tracking import WandBTracker

    quiet = {"silent": True, "console": "off"}
    mode = os.environ.get("WANDB_MODE") or OFFLINE
    return WandBTracker(project, id=run, name=run, resume="allow", mode=mode, settings=quiet)


def _mlflow(project: str, run: str) -> Any:
    # Before the import, which starts its telemetry; of DO_NOT_TRACK it takes only "true", other libraries also "1".
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from trainer.training.mlflow_runs import ContinuedMLflow

    return ContinuedMLflow(project, run)


MAKERS: dict[Tracker, Callable[[str, str], Any]] = {"trackio": _trackio, "wandb": _wandb, "mlflow": _mlflow}


def _settings(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job's hyperparameters by the paths of their fields, as for TensorBoard."""
    settings = flatten({part: job[part] for part in HYPERPARAMETERS})
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in settings.items()
        if value is not None
    }
