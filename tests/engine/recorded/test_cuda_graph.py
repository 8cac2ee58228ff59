# SPDX-License-Identifier: Apache-2.0
"""What is captured as a CUDA graph, and on a GPU that it gives the same numbers."""

from types import SimpleNamespace

import pytest
import torch

from skest.engine.recorded.choice import make_step
from skest.engine.recorded.cuda_graph import CudaGraphProgram, reason_not_to_capture
from skest.engine.recorded.program import Program
from skest.engine.recorded.recording import Call, Recorder, Value
from skest.engine.recorded.simplify import Storages
from skest.hooks import Hook
from tests.engine.recorded._steps import batches, make_spec, mlp, run_both

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


class Own(Hook):
    """With which only gradients are recorded."""


def on(device):
    """Return a value that says to be on a device which need not be there."""
    return Value(SimpleNamespace(device=torch.device(device)), "result")


def call(*arguments, returned=None, **kwargs):
    return Call(torch.ops.aten.add.Tensor, arguments, kwargs, returned)


def test_what_one_gpu_does_is_captured():
    x, y = on("cuda:0"), on("cuda:0")
    assert reason_not_to_capture([x], [call(x, 1, returned=y)]) is None


@pytest.mark.parametrize(
    ("inputs", "calls", "match"),
    [
        ([on("cuda:0")], [call(on("cuda:0"), on("cpu"))], "computes on cpu"),
        ([on("cuda:0")], [call(on("cuda:0"), returned=on("cpu"))], "computes on cpu"),
        ([on("cuda:0")], [call(on("cuda:1"))], "computes on cuda:0 and cuda:1"),
        ([], [], "computes on nothing"),
        (
            [on("cuda:0")],
            [call(on("cuda:0"), generator=torch.Generator())],
            "'aten::add.Tensor' draws from a generator of its own",
        ),
    ],
)
def test_what_is_not_captured(inputs, calls, match):
    assert match in reason_not_to_capture(inputs, calls)


def test_on_a_cpu_steps_are_replayed_as_usual():
    x = torch.ones(2)
    with Recorder([x]) as recorder:
        outputs = [recorder.value_of(x + 1)]
    calls = recorder.calls
    inputs = recorder.inputs
    program = CudaGraphProgram(inputs, calls, outputs, [], Storages(calls))
    assert program.obstacle == "it computes on cpu"
    assert program(3 * x)[0].tolist() == [4, 4]


@needs_cuda
@pytest.mark.parametrize("hooks", [[], [Own()]])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layer", [torch.nn.Identity(), torch.nn.Dropout(0.5)])
def test_a_captured_step_gives_the_same_numbers(fused, layer, hooks, monkeypatch):
    captured = []
    capture = CudaGraphProgram._capture
    monkeypatch.setattr(
        CudaGraphProgram, "_capture", lambda p, x: captured.append(p) or capture(p, x)
    )

    def make():
        network = mlp(layer).cuda()
        optimizer = torch.optim.Adam(network.parameters(), fused=fused)
        return make_spec(network, optimizer=optimizer)

    data = [(x.cuda(), y.cuda()) for x, y in batches(12)]
    assert run_both(make, data, hooks=hooks) == (10, [])
    assert [program.obstacle for program in captured] == [None]


@needs_cuda
def test_a_last_batch_that_is_smaller_is_not_captured():
    data = [(x.cuda(), y.cuda()) for x, y in batches(60, sizes=(8, 5))]
    spec = make_spec(mlp().cuda())
    step = make_step("graph", spec, [], None)
    for batch in data:
        step(*batch)
    kinds = [type(replay._program) for replay in step._replays.values()]
    assert kinds == [CudaGraphProgram, Program]
