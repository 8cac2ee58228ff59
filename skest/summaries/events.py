# SPDX-License-Identifier: Apache-2.0
"""Event files and what is in them; the one module that imports tensorboard."""

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import (
    HistogramProto,
    Summary,
    SummaryMetadata,
)
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import (
    PLUGIN_NAME,
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from tensorboard.summary.writer.record_writer import RecordWriter

from skest.summaries.graph import Node

__all__ = [
    "EventFile",
    "graph_def",
    "histogram_value",
    "hparams_value",
    "scalar_value",
    "success_value",
]

_N_BINS = 30
_FILE_VERSION = "brain.Event:2"


class EventFile:
    """A new event file in a directory, which is made if need be.

    Every event is handed to the operating system at once and as a whole: there is no
    thread, nothing to flush, and an event is never lost because the process is killed.

    Parameters
    ----------
    directory : Path
        Where the file is made.
    first_step : int, default=None
        TensorBoard forgets what earlier files of the directory have from this step on.
        None lets it forget nothing.

    Raises
    ------
    OSError
        If the file cannot be made.
    """

    def __init__(self, directory: Path, first_step: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and each to its end.
        seconds, micros = divmod(time.time_ns() // 1000, 10**6)
        name = f"{seconds:010d}.{micros:06d}.{socket.gethostname()}.{os.getpid()}"
        path = directory / f"events.out.tfevents.{name}"
        self._records = RecordWriter(open(path, "xb", buffering=0))
        self._write(Event(file_version=_FILE_VERSION))
        if first_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=first_step, session_log=start))

    def values(self, values: Iterable[Any], step: int) -> None:
        """Write the values of a step as one event."""
        self._write(Event(step=step, summary=Summary(value=values)))

    def graph(self, nodes: Iterable[Node]) -> None:
        """Write a graph."""
        self._write(Event(graph_def=graph_def(nodes).SerializeToString()))

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


def scalar_value(tag: str, value: float) -> Any:
    """Return a number as a value of an event."""
    return Summary.Value(tag=tag, simple_value=value)


def histogram_value(tag: str, values: NDArray[Any]) -> Any:
    """Return the distribution of finite numbers, at least one, as a value of an event."""
    values = values.astype(np.float64)
    counts, limits = np.histogram(values, bins=_N_BINS)
    histogram = HistogramProto(
        min=values.min(),
        max=values.max(),
        num=values.size,
        sum=values.sum(),
        sum_squares=values @ values,
        bucket_limit=limits[1:],
        bucket=counts,
    )
    return Summary.Value(tag=tag, histo=histogram)


def hparams_value(hparams: Mapping[str, float | bool | str]) -> Any:
    """Return hyperparameters as a value that opens a row of the page "HParams"."""
    info = SessionStartInfo(start_time_secs=time.time())
    for name, value in hparams.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
        else:
            info.hparams[name].number_value = value
    return _hparams_plugin_value(SESSION_START_INFO_TAG, session_start_info=info)


def success_value() -> Any:
    """Return the value that says that the training of `hparams_value` has ended."""
    info = SessionEndInfo(
        status=Status.Value("STATUS_SUCCESS"), end_time_secs=time.time()
    )
    return _hparams_plugin_value(SESSION_END_INFO_TAG, session_end_info=info)


def _hparams_plugin_value(tag: str, **info: Any) -> Any:
    data = SummaryMetadata.PluginData(
        plugin_name=PLUGIN_NAME,
        content=HParamsPluginData(version=0, **info).SerializeToString(),
    )
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data))


def graph_def(nodes: Iterable[Node]) -> Any:
    """Return nodes as the message that TensorBoard draws."""
    graph = GraphDef()
    for node in nodes:
        shapes = [
            TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in shape])
            for shape in node.shapes
        ]
        graph.node.add(
            name=node.name,
            op=node.kind,
            input=node.inputs,
            attr={"_output_shapes": AttrValue(list=AttrValue.ListValue(shape=shapes))},
        )
    return graph
