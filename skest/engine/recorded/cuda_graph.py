# SPDX-License-Identifier: Apache-2.0
"""`CudaGraphProgram`: a recorded step that the driver repeats as one CUDA graph."""

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from skest.engine.recorded.program import Program, dense_parts
from skest.engine.recorded.recording import Call, Value
from skest.engine.recorded.simplify import Storages

_WARM_UPS = 3  # libraries choose their algorithms and reserve memory in the first calls


class _OwnStreams(threading.local):
    """The streams of a thread, one for each GPU, on which its steps are captured.

    All programs of a thread share them: cuBLAS reserves memory for every stream that ever
    multiplied matrices, 32 MiB on an H100, and keeps it. Threads do not, as what one
    launches while another captures would get into the graph.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def on(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


_own_streams = _OwnStreams()


class CudaGraphProgram(Program):
    """A step as a CUDA graph; otherwise as `skest.engine.recorded.program.Program`.

    The first steps are those of a `Program`, on a stream of their own. Then one is
    captured, and from then on a step copies the batch into memory that stays where it is
    and launches the graph: the time that Python and PyTorch take for each operation is
    saved. What cannot be captured stays a `Program`.

    Parameters
    ----------
    inputs, calls, outputs, kept, storages
        As for `skest.engine.recorded.program.Program`.

    Attributes
    ----------
    places
        As there. What is at a position among the returned tensors is overwritten by the
        next step, except for the outputs.
    obstacle : str or None
        Why the step is not captured, if it isn't.

    Notes
    -----
    It follows "CUDA Graphs" in the notes of PyTorch on CUDA semantics: warm-up on a side
    stream, static inputs, and memory of a private pool. Random numbers of the default
    generator of the device go on from step to step, as they do without a graph.
    """

    def __init__(
        self,
        inputs: Sequence[Value],
        calls: Sequence[Call],
        outputs: Sequence[Value],
        kept: Sequence[Value],
        storages: Storages,
    ) -> None:
        super().__init__(inputs, calls, outputs, kept, storages)
        # Known before the first step: warm-ups would be for nothing.
        self.obstacle = reason_not_to_capture(inputs, calls)
        self._n_outputs = len(outputs)
        self._warm_ups_left = _WARM_UPS
        self._graph: Any = None
        self._inputs: list[Tensor] = []
        self._returned: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Take the step with a batch and return the outputs, and more; see `places`."""
        if self.obstacle is not None:
            return super().__call__(*inputs)
        with torch.cuda.device(inputs[0].device):
            if self._warm_ups_left:
                self._warm_ups_left -= 1
                return self._on_side_stream(inputs)
            # Capturing computes nothing, so that this batch is replayed as all others.
            if self._graph is None:
                self._capture(inputs)
            if self.obstacle is not None:
                return super().__call__(*inputs)
            return self._replayed(inputs)

    def _on_side_stream(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        current = torch.cuda.current_stream()
        side = _own_streams.on(inputs[0].device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            returned = super().__call__(*inputs)
        current.wait_stream(side)
        # Their memory is the side stream's, and they are used on this one. Others may have
        # the same side stream: there are 32, which PyTorch gives out in turn.
        for part in chain.from_iterable(map(dense_parts, returned)):
            part.record_stream(current)
        return returned

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        """Record the launches of a step; nothing is computed."""
        # A graph knows addresses: every batch is copied to where this one is.
        self._inputs = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on with what they do.
            with torch.cuda.graph(
                graph,
                stream=_own_streams.on(inputs[0].device),
                capture_error_mode="thread_local",
            ):
                self._returned = super().__call__(*self._inputs)
        except RuntimeError as error:
            self.obstacle = f"{type(error).__name__} when a step was captured"
            # Memory of a graph that is not there would never be given back.
            self._inputs, self._returned = [], ()
        else:
            self._graph = graph

    def _replayed(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for own, given in zip(self._inputs, inputs, strict=True):
            # Ordered by the stream before the graph that reads it.
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        # Losses live longer than a step: hooks read several at once, to wait only once.
        fresh = [tensor.clone() for tensor in self._returned[: self._n_outputs]]
        return (*fresh, *self._returned[self._n_outputs :])


def reason_not_to_capture(inputs: Sequence[Value], calls: Sequence[Call]) -> str | None:
    """Tell why a recorded step cannot be captured as a CUDA graph, if it cannot.

    A graph repeats what one GPU does. What the CPU computes in a step, such as the
    counters of some optimizers, would be done once; so would the seeds be drawn of a
    generator that the graph does not know.

    Parameters
    ----------
    inputs : sequence of Value
        The tensors of the batch.
    calls : sequence of Call
        The recorded step.

    Returns
    -------
    str or None
        The reason.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.cuda_graph import reason_not_to_capture
    >>> from skest.engine.recorded.recording import Recorder
    >>> x = torch.ones(2)
    >>> with Recorder([x]) as recorder:
    ...     y = x + 1
    >>> reason_not_to_capture(recorder.inputs, recorder.calls)
    'it computes on cpu'
    """
    of_calls = [v for call in calls for v in (*call.arguments, *call.results)]
    tensors = [value.tensor for value in (*inputs, *of_calls)]
    # Adam counts on the CPU unless it is fused or capturable: that would stand still.
    others = {str(t.device) for t in tensors if t.device.type != "cuda"}
    if others:
        return f"it computes on {' and '.join(sorted(others))}"
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        return f"it computes on {' and '.join(sorted(devices)) or 'nothing'}"
    for call in calls:
        arguments = [*call.args, *call.kwargs.values()]
        if any(isinstance(argument, torch.Generator) for argument in arguments):
            return f"'{call.function.name()}' draws from a generator of its own"
    return None
