"""TensorBoard's messages for what is no curve: hyperparameters, texts and single figures. Nothing here needs torch."""

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from trainer.records.fields import flatten

HYPERPARAMETERS = ("model", "training")
"""The parts of a job that hold its hyperparameters."""


def session_start(job: Mapping[str, Any]) -> Summary:
    """A job's hyperparameters by the paths of their fields; what is not set is left out.

    TensorBoard finds the columns of its table, and the figures to compare, from all runs that it shows.
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
    """That a run is finished, since a time in seconds."""
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
    """A file of TensorBoard's with messages of one step and time; the same bytes for the same."""
    file = io.BytesIO()
    records = RecordWriter(file)
    records.write(Event(wall_time=time, file_version="brain.Event:2").SerializeToString())
    for summary in summaries:
        records.write(Event(wall_time=time, step=step, summary=summary).SerializeToString(deterministic=True))
    return file.getvalue()


def _of_session(tag: str, data: HParamsPluginData) -> Summary:
    """As `metadata.create_summary_metadata` has it, but the same bytes each time."""
    data.version = metadata.PLUGIN_DATA_VERSION
    content = data.SerializeToString(deterministic=True)
    kind = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=kind), tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])
